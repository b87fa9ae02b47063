/** Histogram by layer: how strongly the pairs of each head map a direction onto itself, or onto its opposite. */

const BINS = 100;

function histogramView() {
  const matrix = matrixSwitch();
  const weighted = segmented("Counted", [["yes", "sigma × overlap"], ["no", "overlap"]], (value) => app.go({ weighted: value === "yes" }, "replace"));
  const reach = segmented("Range", [["one", "±1"], ["all", "all pairs"]], (value) => app.go({ range: value }, "replace"));
  const slider = /** @type {HTMLInputElement} */ (
    make("input", { type: "range", min: 0, max: data.layers.length - 1, step: 1, "aria-label": "Layer", oninput: () => app.go({ layer: Number(slider.value) }, "replace") })
  );
  const output = make("output", { class: "number" });
  const plot = figure("Overlaps of all heads of a layer", { keys: "Left and right change the head that is drawn as a line, up and down the layer, Enter opens the head." });
  const cursor = make("p", { class: "cursor", "aria-live": "polite" });
  const root = make(
    "section", {},
    make("div", { class: "controls" }, matrix.root, weighted.root, reach.root, make("label", { class: "control wide" }, make("span", {}, "Layer ", output), slider)),
    plot.root, cursor,
  );
  plot.listen("plotly_click", (event) => {
    const head = event.points[0].customdata;
    if (head !== undefined) openHead({ matrix: app.state.matrix, layer: app.state.layer, head });
  });

  /** @param {State} state */
  async function update(state) {
    matrix.set(data.matrices[state.matrix].name);
    weighted.set(state.weighted ? "yes" : "no");
    slider.value = String(state.layer);
    slider.setAttribute("aria-valuetext", `layer ${data.layers[state.layer]}`);
    output.textContent = String(data.layers[state.layer]);
    const drawn = drawnTreatment(state);
    const of = await data.layerPairs(drawn, state.matrix, state.layer);
    const values = range(data.heads).map((head) => countedValues(of, head, state.weighted));
    const limit = histogramLimit(values, state.range);
    reach.set(limit === 1 ? "one" : "all");
    const counts = values.map((own) => countBins(own, limit));
    await drawHistogram(plot, state, counts, limit);
    const here = counts[state.head];
    cursor.replaceChildren(
      make("strong", {}, headName(state)),
      ` · ${here.total} pairs, ${here.outside} of them beyond ±${formatNumber(limit)} · `, link(writeHash({ ...state, view: "head" }), "Open this head"),
    );
  }
  return { root, update, title: "Histogram", keys: true };
}

/**
 * @param {(name: string, head: number) => Float32Array} of
 * @param {number} head
 * @param {boolean} weighted
 * @returns {Float32Array} one number per pair that counts
 */
function countedValues(of, head, weighted) {
  const overlap = of("overlap", head);
  const sigma = of("sigma", head);
  return overlap.map((value, i) => (weighted ? sigma[i] * value : value)).filter((value) => !Number.isNaN(value));
}

/**
 * The published range is ±1; left to itself, the plot goes further where more than a quarter of the pairs lie beyond.
 * @param {Float32Array[]} values
 * @param {string} wanted auto, one or all
 */
function histogramLimit(values, wanted) {
  let largest = 1;
  let outside = 0;
  let total = 0;
  for (const own of values) {
    for (const value of own) {
      total += 1;
      if (Math.abs(value) > 1) outside += 1;
      largest = Math.max(largest, Math.abs(value));
    }
  }
  if (wanted === "one" || largest === 1 || (wanted === "auto" && outside <= total / 4)) return 1;
  const unit = 10 ** Math.floor(Math.log10(largest));
  return Math.ceil((largest / unit) * 2) * (unit / 2);
}

/**
 * @param {Float32Array} values
 * @param {number} limit
 */
function countBins(values, limit) {
  const bins = new Uint16Array(BINS);
  let outside = 0;
  for (const value of values) {
    if (Math.abs(value) > limit) outside += 1;
    else bins[Math.min(BINS - 1, Math.floor(((value / limit + 1) * BINS) / 2))] += 1;
  }
  return { bins, outside, total: values.length };
}

/**
 * @param {Figure} plot
 * @param {State} state
 * @param {ReturnType<typeof countBins>[]} counts
 * @param {number} limit
 */
async function drawHistogram(plot, state, counts, limit) {
  const c = colors();
  const width = plot.width();
  const matrix = data.matrices[state.matrix];
  const middle = (/** @type {number} */ i) => Number((limit * (-1 + (2 * i + 1) / BINS)).toPrecision(6));
  const traces = counts.map(({ bins }, head) => {
    const full = range(BINS).filter((i) => bins[i]);
    return {
      type: "bar", x: full.map(middle), y: full.map((i) => bins[i]), width: (2 * limit) / BINS, customdata: full.map(() => head), name: `head ${head}`,
      marker: { color: sequentialColor(head / Math.max(1, data.heads - 1)), line: { width: 0 } },
      hovertemplate: `Head ${head}<br>%{y} pairs at %{x:.2f}<extra></extra>`,
    };
  });
  const line = {
    type: "scatter", mode: "lines", x: range(BINS).map(middle), y: Array.from(counts[state.head].bins), line: { shape: "hvh", width: 1.5, color: theme.dark() ? "#ffffff" : "#d40000" },
    hoverinfo: "skip",
  };
  const key = {
    type: "scatter", mode: "markers", x: [null], y: [null], hoverinfo: "skip",
    marker: { color: [0], cmin: 0, cmax: Math.max(1, data.heads - 1), colorscale: SEQUENTIAL, colorbar: bottomBar("head", -0.2) },
  };
  const outside = counts.reduce((sum, count) => sum + count.outside, 0);
  const what = state.weighted ? "sigma × overlap" : "overlap";
  await plot.draw([...traces, line, key], {
    width, height: width < 520 ? 430 : 520, barmode: "stack", bargap: 0, margin: { l: 56, r: 16, t: 16, b: 110 },
    xaxis: axis({ title: what, range: [-limit, limit], zeroline: true, zerolinecolor: c.muted }), yaxis: axis({ title: "pairs", rangemode: "tozero" }),
  }, {
    file: `histogram-${matrix.name}-layer-${data.layers[state.layer]}${state.weighted ? "-weighted" : ""}`,
    alt: `Histogram of ${what} over the singular pairs of all heads of layer ${data.layers[state.layer]}, ${matrix.label} matrix.`,
    caption: [
      `The singular pairs of layer ${data.layers[state.layer]}'s heads, ${matrix.long}, stacked by head in bins of ${formatNumber((2 * limit) / BINS)}: `,
      state.weighted ? "singular value times " : "", definition("overlap_mean", "overlap"),
      " v·u of what a pair writes and what it reads. Right of zero a direction is kept, left of it turned into its opposite. ",
      `Beyond ±${formatNumber(limit)}, not drawn: ${formatCount(outside)} of ${formatCount(counts.reduce((sum, count) => sum + count.total, 0))} pairs. Line: the current head alone.`,
    ],
  });
}

/**
 * Pairs and Z are kept for some treatments only where a page would grow too large.
 * @param {State} state
 */
function drawnTreatment(state) {
  return data.treatments[state.treatment].drawn ? state.treatment : 0;
}
