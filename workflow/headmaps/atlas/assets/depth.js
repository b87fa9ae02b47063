/** Distributions of a quantity over the heads of every model, and along its depth. */

/**
 * @param {Figure} plot
 * @param {IndexState} state
 * @param {(Float32Array | null)[]} values per model
 * @param {string} label
 */
async function drawDistributions(plot, state, values, label) {
  const c = colors();
  const summary = values.map((v) => quantiles(v ?? [], [0.05, 0.25, 0.5, 0.75, 0.95]));
  const names = models.map((m) => m.name);
  const bar = (/** @type {number} */ low, /** @type {number} */ high, /** @type {number} */ width) => ({
    type: "scatter", mode: "lines", hoverinfo: "skip", line: { width, color: c.muted },
    y: names.flatMap((name) => [name, name, null]), x: summary.flatMap((s) => [s[low], s[high], null]),
  });
  const narrow = plot.width() < 520;
  await plot.draw([
    bar(0, 4, 1.5), bar(1, 3, 5),
    {
      type: "scatter", mode: "markers", y: names, x: summary.map((s) => s[2]), marker: { size: 11, color: models.map((_, i) => modelColor(i)), line: { width: 1.5, color: c.ground } },
      text: summary.map((s) => s.map(formatNumber)).map((s, i) => `${names[i]}<br>median ${s[2]}<br>half of the heads ${s[1]} to ${s[3]}<br>nine tenths ${s[0]} to ${s[4]}`),
      hovertemplate: "%{text}<extra></extra>",
    },
  ], {
    width: plot.width(), height: 90 + 30 * models.length, margin: { l: narrow ? 120 : 200, r: 16, t: 8, b: 48 },
    xaxis: axis({ title: label, nticks: narrow ? 4 : 8 }), yaxis: axis({ type: "category", categoryorder: "array", categoryarray: [...names].reverse(), range: [-0.7, models.length - 0.3] }),
  }, {
    file: `distribution-${state.q}-${state.matrix}`,
    alt: `Median and spread of ${label} over the heads of ${models.length} models.`,
    caption: ["A point is the median over all heads of a model; the thick bar holds half of them, the thin one nine tenths."],
  });
}

/**
 * @param {Figure} plot
 * @param {IndexState} state
 * @param {(Float32Array | null)[]} values per model
 * @param {string} label
 */
async function drawDepth(plot, state, values, label) {
  const narrow = plot.width() < 520;
  const traces = models.flatMap((model, number) => {
    const own = values[number];
    if (!own) return [];
    const medians = model.layers.map((_, l) => quantiles(own.subarray(l * model.heads, (l + 1) * model.heads), [0.5])[0]);
    return [{
      type: "scatter", mode: "lines+markers", name: model.name, x: model.layers.map((layer) => (model.n_layers > 1 ? layer / (model.n_layers - 1) : 0)), y: medians,
      line: { color: modelColor(number), width: 1.8, dash: models.length <= 6 ? DASHES[number] : "solid" }, marker: { size: 5, color: modelColor(number) },
      text: model.layers.map((layer, l) => `${model.name}<br>layer ${layer}: median ${formatNumber(medians[l])}`), hovertemplate: "%{text}<extra></extra>",
    }];
  });
  const rows = Math.ceil(models.length / (narrow ? 1 : 3));
  const legend = models.length <= 12;
  const top = legend ? 20 + 20 * rows : 16;
  await plot.draw(traces, {
    width: plot.width(), height: 340 + top, margin: { l: 56, r: 16, t: top, b: 48 },
    xaxis: axis({ title: "depth: first layer 0, last layer 1", range: [-0.03, 1.03], zeroline: false }), yaxis: axis({ title: label, zeroline: true }),
    showlegend: legend, legend: { orientation: "h", x: 0, y: 1.01, yanchor: "bottom", font: { size: 11 }, itemclick: false, itemdoubleclick: false },
  }, {
    file: `depth-${state.q}-${state.matrix}`,
    alt: `${label} by depth in ${models.length} models.`,
    caption: ["A point is the median over the heads of one layer.", legend ? "" : " Colours run with the order of the models."],
  });
}
