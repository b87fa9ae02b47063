/** Overview: one quantity of every head, layers down and heads across, the matrices side by side. */

function overviewView() {
  const chosen = chooser("Quantity", (q) => app.go({ q }, "replace"));
  const meaning = make("p", { class: "meaning" });
  const map = figure("Every head", { keys: "Arrow keys move through heads and layers, Enter opens the head." });
  const cursor = make("p", { class: "cursor", "aria-live": "polite" });
  const extremes = make("div", { class: "columns" });
  const root = make(
    "section", {},
    make("div", { class: "controls" }, chosen.root),
    meaning, map.root, cursor, extremes,
  );
  map.listen("plotly_click", (event) => openHead(event.points[0].customdata));

  /** @param {State} state */
  async function update(state) {
    const columns = data.columns.filter((c) => data.treatments[state.treatment].columns.includes(c.name) && c.statistic !== "draws");
    chosen.set(columnGroups(columns), state.q);
    const values = await data.column(state.treatment, state.q);
    const quantity = data.quantities[data.columnOf.get(state.q)?.quantity ?? ""];
    meaning.replaceChildren(quantity ? `${quantity.meaning} ` : "", definition(state.q, "Definition"));
    await drawMap(map, state, values);
    cursor.replaceChildren(...cursorWords(state, values));
    extremes.replaceChildren(...data.matrices.map((_, m) => extremeHeads(state, values, m)));
  }
  return { root, update, title: "Overview", keys: true };
}

/**
 * @param {Figure} map
 * @param {State} state
 * @param {Float64Array} values
 */
async function drawMap(map, state, values) {
  const c = colors();
  const width = map.width();
  const many = data.matrices.length;
  const across = width >= 760 ? many : 1;
  const down = Math.ceil(many / across);
  const rowHeight = clamp(Math.floor(480 / data.layers.length), data.layers.length > 40 ? 7 : 10, 34);
  const margin = { l: 48, r: 12, t: 30, b: 96 };
  const plotHeight = data.layers.length * rowHeight;
  const gap = 64;
  const inner = down * plotHeight + (down - 1) * gap;
  const diverging = data.columnOf.get(state.q)?.diverging ?? false;
  const [cmin, cmax] = colorRange([...values], diverging);
  /** @type {Record<string, any>} */
  const layout = {
    width, height: inner + margin.t + margin.b, margin,
    coloraxis: {
      cmin, cmax, colorscale: diverging ? divergingScale() : SEQUENTIAL,
      colorbar: bottomBar(data.label(state.q), -52 / inner),
    },
    annotations: [], shapes: [],
  };
  const columnGap = 44 / (width - margin.l - margin.r);
  const traces = data.matrices.map((matrix, m) => {
    const suffix = m ? String(m + 1) : "";
    const column = m % across;
    const row = Math.floor(m / across);
    const cell = (1 - columnGap * (across - 1)) / across;
    const left = column * (cell + columnGap);
    const top = 1 - (row * (plotHeight + gap)) / inner;
    layout[`xaxis${suffix}`] = axis({ domain: [left, left + cell], anchor: `y${suffix}`, title: "head", showgrid: false, zeroline: false, range: [-0.5, data.heads - 0.5] });
    layout[`yaxis${suffix}`] = axis({
      domain: [top - plotHeight / inner, top], anchor: `x${suffix}`, title: column ? "" : "layer", showgrid: false, zeroline: false,
      range: [data.layers.length - 0.5, -0.5], ...layerTicks(plotHeight),
    });
    layout.annotations.push({
      text: matrix.label, x: left, xref: "paper", xanchor: "left", y: top, yref: "paper", yanchor: "bottom", showarrow: false, font: { size: 13, color: c.ink },
    });
    const rows = range(data.layers.length);
    const cells = rows.map((layer) => range(data.heads).map((head) => ({ matrix: m, layer, head })));
    return {
      type: "heatmap", xaxis: `x${suffix}`, yaxis: `y${suffix}`, coloraxis: "coloraxis", xgap: data.heads > 40 ? 0 : 1, ygap: data.layers.length > 40 ? 0 : 1,
      x: range(data.heads), y: rows, z: cells.map((line) => line.map((place) => values[data.index(place)])),
      customdata: cells, hoverongaps: false,
      text: cells.map((line) => line.map((place) => `${headName(place)}<br>${matrix.label}: ${formatNumber(values[data.index(place)])}`)),
      hovertemplate: "%{text}<extra></extra>",
    };
  });
  layout.shapes = overviewMarks(state);
  await map.draw(traces, layout, {
    file: `overview-${state.q}`,
    alt: `Heat map of ${data.label(state.q)} over ${data.layers.length} layers and ${data.heads} heads, for ${data.matrices.map((m) => m.label).join(" and ")}.`,
    caption: [
      "A cell is one head of one layer; its colour is its ", definition(state.q),
      diverging ? ", zero in the middle of the scale." : ".",
      " Colours end at the 1st and 99th percentile of all cells; hover for the number, click for the head. Outlined: the current head",
      state.sel ? " and, dotted, the selected ones." : ".",
    ],
  });
}

/** @param {number} height */
function layerTicks(height) {
  const every = Math.max(1, Math.ceil((data.layers.length * 15) / height));
  const places = range(data.layers.length).filter((i) => i % every === 0);
  return { tickvals: places, ticktext: places.map((i) => String(data.layers[i])) };
}

/** @param {State} state */
function overviewMarks(state) {
  const c = colors();
  const box = (/** @type {number} */ m, /** @type {number} */ layer, /** @type {number} */ head, /** @type {any} */ line) => ({
    type: "rect", xref: m ? `x${m + 1}` : "x", yref: m ? `y${m + 1}` : "y", line,
    x0: head - 0.5, x1: head + 0.5, y0: layer - 0.5, y1: layer + 0.5,
  });
  const marks = [];
  for (const m of range(data.matrices.length)) {
    for (const n of parseSelection(state.sel)) {
      marks.push(box(m, Math.floor(n / data.heads), n % data.heads, { color: c.ortho, width: 1.5, dash: "dot" }));
      if (marks.length > 2000) break;
    }
    marks.push(box(m, state.layer, state.head, { color: theme.dark() ? "#ffffff" : "#d40000", width: 2 }));
  }
  return marks;
}

/**
 * @param {State} state
 * @param {Float64Array} values
 */
function cursorWords(state, values) {
  const here = { matrix: 0, layer: state.layer, head: state.head };
  const parts = data.matrices.map((matrix, m) => `${matrix.label} ${formatNumber(values[data.index({ ...here, matrix: m })])}`);
  return [
    make("strong", {}, headName(here)), ` · ${parts.join(" · ")} · `,
    link(writeHash({ ...state, view: "head" }), "Open this head"),
  ];
}

/**
 * The heads at both ends of a quantity.
 * @param {State} state
 * @param {Float64Array} values
 * @param {number} m
 */
function extremeHeads(state, values, m) {
  const per = data.layers.length * data.heads;
  const finite = range(per).map((i) => m * per + i).filter((i) => !Number.isNaN(values[i]));
  finite.sort((a, b) => values[b] - values[a] || a - b);
  const list = (/** @type {string} */ title, /** @type {number[]} */ which) =>
    make(
      "div", {}, make("h4", {}, title),
      make("ol", { class: "heads" }, ...which.map((i) => {
        const place = data.place(i);
        const address = writeHash({ ...state, ...place, view: "head" });
        return make("li", {}, link(address, headName(place)), make("span", { class: "number" }, formatNumber(values[i])));
      })),
    );
  return make(
    "section", { class: "card" }, make("h3", {}, `${data.matrices[m].label}: both ends`),
    make("div", { class: "pair" }, list("Highest", finite.slice(0, 6)), list("Lowest", finite.slice(-6).reverse())),
  );
}

/** @param {Place} place */
function openHead(place) {
  app.go({ ...place, view: "head" }, "push");
}
