/** Ternary scatter: what every head does with what it reads, as shares of self, ortho and rotation. */

const MEANS = ["self_mean", "ortho_mean", "rotation_mean"];

function scatterView() {
  const matrix = matrixSwitch();
  const zoom = checkbox("Zoom to the heads", (on) => app.go({ zoom: on }, "replace"));
  const plot = figure("Self, ortho and rotation of every head", { keys: "Arrow keys move through heads and layers, Enter opens the head." });
  const cursor = make("p", { class: "cursor", "aria-live": "polite" });
  const chosen = make("section", { class: "card" });
  const root = make(
    "section", {}, make("div", { class: "controls" }, matrix.root, zoom.root),
    make("div", { class: "split" }, plot.root, make("div", {}, cursor, chosen)),
  );
  plot.listen("plotly_click", (event) => {
    const place = event.points[0].customdata;
    if (place) openHead(place);
  });
  plot.listen("plotly_selected", (event) => {
    const places = (event?.points ?? []).map((/** @type {any} */ p) => p.customdata).filter(Boolean);
    if (!event) return;
    app.go({ sel: writeSelection(places.map((/** @type {Place} */ p) => p.layer * data.heads + p.head)) }, "push");
  });

  /** @param {State} state */
  async function update(state) {
    matrix.set(data.matrices[state.matrix].name);
    zoom.set(state.zoom);
    const means = await data.columnsOf(state.treatment, MEANS);
    const cloud = await data.block(`cloud-${state.matrix}`, float32Block);
    const points = ternaryPoints(means, state.matrix);
    await drawScatter(plot, state, points, cloud);
    const here = data.index({ matrix: state.matrix, layer: state.layer, head: state.head });
    cursor.replaceChildren(
      make("strong", {}, headName(state)),
      ` · self ${formatNumber(means.self_mean[here])} · ortho ${formatNumber(means.ortho_mean[here])} · rotation ${formatNumber(means.rotation_mean[here])} · `,
      link(writeHash({ ...state, view: "head" }), "Open this head"),
    );
    chosen.replaceChildren(...selectionWords(state, means.self_mean));
  }
  return { root, update, title: "Self, ortho, rotation", keys: true };
}

/**
 * @param {Record<string, Float64Array>} means
 * @param {number} matrix
 * @returns {{place: Place, self: number, ortho: number, rotation: number}[]} shares that sum to 1, heads with values only
 */
function ternaryPoints(means, matrix) {
  const per = data.layers.length * data.heads;
  const points = [];
  for (let i = matrix * per; i < (matrix + 1) * per; i++) {
    const [self, ortho, rotation] = MEANS.map((name) => means[name][i]);
    const sum = self + ortho + rotation;
    if (sum > 0) points.push({ place: data.place(i), self: self / sum, ortho: ortho / sum, rotation: rotation / sum });
  }
  return points;
}

/**
 * Least squares ortho = a + b self, the published figure's line.
 * @param {{self: number, ortho: number}[]} points
 * @returns {{a: number, b: number}}
 */
function linearFit(points) {
  const n = points.length;
  const mean = (/** @type {(p: any) => number} */ f) => points.reduce((sum, p) => sum + f(p), 0) / n;
  const x = mean((p) => p.self);
  const y = mean((p) => p.ortho);
  const b = mean((p) => (p.self - x) * (p.ortho - y)) / mean((p) => (p.self - x) ** 2);
  return { a: y - b * x, b };
}

/**
 * @param {Figure} plot
 * @param {State} state
 * @param {ReturnType<typeof ternaryPoints>} points
 * @param {Float32Array} cloud
 */
async function drawScatter(plot, state, points, cloud) {
  const c = colors();
  const width = plot.width();
  const { a, b } = linearFit(points);
  const traces = scatterTraces(state, points, cloud, { a, b });
  const limits = state.zoom ? zoomLimits(points) : { self: 0, ortho: 0, rotation: 0 };
  const side = (/** @type {string} */ title, /** @type {number} */ min) => ({
    title: { text: title, font: { size: 13, color: c.ink } }, min, gridcolor: c.grid, linecolor: c.muted, tickcolor: c.muted,
    tickfont: { size: 11, color: c.muted }, ticks: "outside", nticks: 6,
  });
  const narrow = width < 520;
  const layout = {
    width, height: narrow ? width + 70 : Math.min(Math.round(width * 0.86) + 40, 700), dragmode: "select", selectdirection: "any",
    newselection: { line: { color: c.ink, width: 1, dash: "dot" } },
    margin: { l: narrow ? 44 : 70, r: narrow ? 62 : 70, t: 52, b: narrow ? 118 : 104 },
    ternary: {
      sum: 1, bgcolor: c.ground, aaxis: side("ortho", limits.ortho), baxis: side("self", limits.self), caxis: side("rotation", limits.rotation),
    },
    uirevision: `${state.matrix}-${state.zoom}`,
  };
  const matrix = data.matrices[state.matrix];
  await plot.draw(traces, layout, {
    file: `self-ortho-rotation-${matrix.name}`,
    alt: `Ternary scatter of ${points.length} heads by their shares of self, ortho and rotation, ${matrix.label} matrix.`,
    caption: [
      `A point is one head of the ${matrix.long}, coloured by layer: its plain means over singular pairs of `,
      definition("self_mean", "self"), ", ", definition("ortho_mean", "ortho"), " and ", definition("rotation_mean", "rotation"),
      ", divided by their sum. Open circle: the expectation for random subspaces; grey: random heads of the same shape. Dashed: the least-squares line ",
      make("span", { class: "number", id: "fit" }, `ortho = ${formatNumber(a)} ${b < 0 ? "−" : "+"} ${formatNumber(Math.abs(b))} self`),
      ". Drag a box to select heads; click a point to open it.",
    ],
  });
}

/**
 * @param {State} state
 * @param {ReturnType<typeof ternaryPoints>} points
 * @param {Float32Array} cloud
 * @param {{a: number, b: number}} fit
 */
function scatterTraces(state, points, cloud, { a, b }) {
  const c = colors();
  const draws = cloud.length / 3;
  const chosen = parseSelection(state.sel);
  const [low, high] = quantiles(points.map((p) => p.self), [0, 1]);
  const ends = [low, high].map((self) => ({ self, ortho: a + b * self, rotation: 1 - self - a - b * self }));
  const ternary = (/** @type {{self: number, ortho: number, rotation: number}[]} */ list) => ({
    type: "scatterternary", a: list.map((p) => p.ortho), b: list.map((p) => p.self), c: list.map((p) => p.rotation),
  });
  const parts = range(draws).map((i) => ({ self: cloud[i], ortho: cloud[draws + i], rotation: cloud[2 * draws + i] }));
  const here = points.filter((p) => p.place.layer === state.layer && p.place.head === state.head);
  const first = data.layers[0];
  const last = data.layers[data.layers.length - 1];
  return [
    { ...ternary(parts), mode: "markers", hoverinfo: "skip", marker: { size: 3, color: c.fade }, unselected: { marker: { opacity: 1 } } },
    {
      ...ternary(points), mode: "markers", customdata: points.map((p) => p.place),
      text: points.map((p) => `${headName(p.place)}<br>self ${formatNumber(p.self)}, ortho ${formatNumber(p.ortho)}, rotation ${formatNumber(p.rotation)}`),
      hovertemplate: "%{text}<extra></extra>",
      selectedpoints: chosen.size ? points.flatMap((p, i) => (chosen.has(p.place.layer * data.heads + p.place.head) ? [i] : [])) : null,
      unselected: { marker: { opacity: 0.25 } },
      marker: {
        size: points.length > 2000 ? 5 : 7, color: points.map((p) => data.layers[p.place.layer]), cmin: first, cmax: Math.max(last, first + 1),
        colorscale: SEQUENTIAL, line: { width: 0.5, color: theme.dark() ? c.muted : c.ground }, colorbar: bottomBar("layer", -0.12),
      },
    },
    { ...ternary(ends), mode: "lines", hoverinfo: "skip", line: { color: c.ink, dash: "dash", width: 1.5 } },
    {
      ...ternary([data.reference[state.matrix]]), mode: "markers", text: ["Random subspaces"], hovertemplate: "%{text}<extra></extra>",
      marker: { size: 13, symbol: "circle-open", color: c.ink, line: { width: 2 } },
    },
    {
      ...ternary(here), mode: "markers", hoverinfo: "skip",
      marker: { size: 15, symbol: "circle-open", color: theme.dark() ? "#ffffff" : "#d40000", line: { width: 2 } },
    },
  ];
}

/**
 * Smallest shares such that the triangle still holds every head.
 * @param {{self: number, ortho: number, rotation: number}[]} points
 */
function zoomLimits(points) {
  const least = (/** @type {"self" | "ortho" | "rotation"} */ part) =>
    Math.max(0, Math.floor((points.reduce((m, p) => Math.min(m, p[part]), 1) - 0.01) * 50) / 50);
  return { self: least("self"), ortho: least("ortho"), rotation: least("rotation") };
}

/**
 * @param {State} state
 * @param {Float64Array} self
 */
function selectionWords(state, self) {
  const chosen = [...parseSelection(state.sel)].sort((x, y) => x - y);
  if (!chosen.length) return [make("h3", {}, "Selected heads"), make("p", {}, "None. Drag a box over points to select their heads; the selection is marked in the overview and can filter the table.")];
  const shown = chosen.slice(0, 40).map((n) => {
    const place = { matrix: state.matrix, layer: Math.floor(n / data.heads), head: n % data.heads };
    return make("li", {}, link(writeHash({ ...state, ...place, view: "head" }), headName(place)), make("span", { class: "number" }, formatNumber(self[data.index(place)])));
  });
  return [
    make("h3", {}, `Selected heads: ${formatCount(chosen.length)}`),
    make("p", {}, link(writeHash({ ...state, view: "table", only: true, page: 1 }), "Show them in the table"), " · ", link(writeHash({ ...state, view: "overview" }), "in the overview")),
    make("p", {}, make("button", { type: "button", onclick: () => app.go({ sel: "", only: false }, "push") }, "Clear the selection")),
    make("p", { class: "small" }, "With their ", definition("self_mean"), chosen.length > 40 ? ", the first 40:" : ":"),
    make("ol", { class: "heads" }, ...shown),
  ];
}
