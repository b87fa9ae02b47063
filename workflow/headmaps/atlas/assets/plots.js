/** Figures: a plot of fixed size, its caption, and buttons that save it. */

/** Colours that stay apart for colour-blind readers (Okabe and Ito), a little lighter on dark ground. */
const PALETTE = {
  light: {
    ground: "#ffffff", ink: "#1c2024", muted: "#5b636d", grid: "#e3e6ea", mark: "#1c2024", fade: "#c9ced6",
    sigma: "#0072b2", self: "#c98300", ortho: "#c2301c", rotation: "#00815c", bias: "#a3568a", band: "#8c6d4f",
  },
  dark: {
    ground: "#1a1e23", ink: "#e7e9ec", muted: "#a3abb6", grid: "#30363d", mark: "#ffffff", fade: "#4a525c",
    sigma: "#56b4e9", self: "#f0c04a", ortho: "#ff7f6b", rotation: "#2fc795", bias: "#dd9cc8", band: "#bfa283",
  },
};

/** Viridis, at tenths: readable in grey and for colour-blind readers; the published histograms use it too. */
const VIRIDIS = ["#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725"];

/** @type {[number, string][]} */
const SEQUENTIAL = VIRIDIS.map((color, i) => [i / (VIRIDIS.length - 1), color]);

/**
 * @param {number} place between 0 and 1
 * @returns {string} the colour at this place of the sequential scale
 */
function sequentialColor(place) {
  const at = clamp(place, 0, 1) * (VIRIDIS.length - 1);
  const low = Math.min(Math.floor(at), VIRIDIS.length - 2);
  const channel = (/** @type {string} */ color, /** @type {number} */ i) => parseInt(color.slice(1 + 2 * i, 3 + 2 * i), 16);
  const mixed = range(3).map((i) => Math.round(channel(VIRIDIS[low], i) * (low + 1 - at) + channel(VIRIDIS[low + 1], i) * (at - low)));
  return `rgb(${mixed.join(",")})`;
}

/** @returns {typeof PALETTE.light} */
function colors() {
  return PALETTE[theme.dark() ? "dark" : "light"];
}

/**
 * Blue, ground, red: readable by all, and zero is the paper's colour in both themes.
 * @returns {[number, string][]}
 */
function divergingScale() {
  return theme.dark()
    ? [[0, "#8fd0ff"], [0.25, "#2f7fc1"], [0.5, "#1a1e23"], [0.75, "#c75037"], [1, "#ffb199"]]
    : [[0, "#08306b"], [0.25, "#3b80c4"], [0.5, "#ffffff"], [0.75, "#e0553f"], [1, "#7f0010"]];
}

/**
 * Axis in the page's style.
 * @param {Record<string, any>} more
 */
function axis(more = {}) {
  const { title, ...rest } = more;
  const c = colors();
  return {
    gridcolor: c.grid, linecolor: c.muted, zerolinecolor: c.grid, tickcolor: c.muted, ticks: "outside", ticklen: 4,
    tickfont: { color: c.muted, size: 11 }, fixedrange: true, automargin: false,
    ...(title ? { title: { text: title, font: { size: 12, color: c.ink }, standoff: 8 } } : {}),
    ...rest,
  };
}

/**
 * Layout in the page's style.
 * @param {Record<string, any>} more
 */
function plotLayout(more) {
  const c = colors();
  return {
    paper_bgcolor: c.ground, plot_bgcolor: c.ground, font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: c.ink },
    margin: { l: 56, r: 16, t: 16, b: 48 }, dragmode: false, hovermode: "closest", showlegend: false,
    hoverlabel: { font: { family: getComputedStyle(document.body).fontFamily, size: 12 } },
    ...more,
  };
}

/**
 * @typedef {{
 *   root: HTMLElement, plot: any, caption: HTMLElement, width: () => number,
 *   draw: (traces: any[], layout: any, words: {file: string, alt: string, caption: (Node | string)[]}) => Promise<void>,
 *   listen: (event: string, handler: (event: any) => void) => void,
 * }} Figure
 */

/**
 * A figure whose plot keeps its place: the height is set before anything is drawn.
 * @param {string} title
 * @param {{keys?: string}} [options] keys: what the arrow keys do while the plot has the focus
 * @returns {Figure}
 */
function figure(title, options = {}) {
  const plot = /** @type {any} */ (make("div", { class: "plot" }));
  const box = make("div", { class: "plot-box", role: "img", "aria-label": title }, plot);
  const caption = make("figcaption", {});
  let file = "figure";
  const save = (/** @type {string} */ format) => async () => {
    const { width, height } = plot.layout;
    await Plotly.downloadImage(plot, { format, filename: `${manifest.model}-${file}`, width, height, scale: format === "png" ? 3 : 1 });
  };
  const buttons = make(
    "div", { class: "figure-tools" },
    make("button", { type: "button", class: "quiet", onclick: save("svg"), "aria-label": `Save "${title}" as SVG` }, "SVG"),
    make("button", { type: "button", class: "quiet", onclick: save("png"), "aria-label": `Save "${title}" as PNG` }, "PNG"),
  );
  const heading = make("div", { class: "figure-head" }, make("h3", {}, title), buttons);
  const root = make("figure", { class: "card" }, heading, box, caption);
  if (options.keys) {
    box.setAttribute("tabindex", "0");
    box.setAttribute("role", "group");
    box.setAttribute("aria-roledescription", "interactive plot");
  }
  /** @type {[string, (event: any) => void][]} */
  const waiting = [];
  return {
    root, plot, caption,
    width: () => Math.max(240, Math.floor(box.clientWidth)),
    async draw(traces, layout, words) {
      file = words.file;
      box.style.height = `${layout.height}px`;
      box.setAttribute("aria-label", options.keys ? `${words.alt} ${options.keys}` : words.alt);
      caption.replaceChildren(...words.caption);
      await Plotly.react(plot, traces, plotLayout(layout), { displayModeBar: false, responsive: false, scrollZoom: false, doubleClick: false });
      for (const [event, handler] of waiting.splice(0)) plot.on(event, handler);
    },
    listen(event, handler) {
      waiting.push([event, handler]);
    },
  };
}

/** Colour bar below a plot, out of the way of its axes. */
function bottomBar(/** @type {string} */ title, /** @type {number} */ y, more = {}) {
  const c = colors();
  return {
    orientation: "h", thickness: 10, len: 0.6, x: 0.5, xanchor: "center", y, yanchor: "top", outlinewidth: 0,
    tickfont: { size: 11, color: c.muted }, title: { text: title, side: "top", font: { size: 12, color: c.ink } }, ...more,
  };
}

/**
 * Range of a colour scale: the 1st to the 99th percentile, or symmetric about 0.
 * @param {number[]} values
 * @param {boolean} diverging
 * @returns {[number, number]}
 */
function colorRange(values, diverging) {
  let [low, high] = quantiles(values, [0.01, 0.99]);
  if (diverging) {
    const reach = Math.max(Math.abs(low), Math.abs(high)) || 1;
    return [-reach, reach];
  }
  if (!(high > low)) [low, high] = [low - 0.5, low + 0.5];
  return Number.isFinite(low) ? [low, high] : [0, 1];
}
