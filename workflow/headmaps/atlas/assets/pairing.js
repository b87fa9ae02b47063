/** Two models head by head, or quantile by quantile where their heads do not correspond. */

/**
 * Revisions of one model, or models of one shape, have heads that correspond.
 * @param {Model} a
 * @param {Model} b
 */
function sameHeads(a, b) {
  return a.heads === b.heads && a.layers.length === b.layers.length && a.layers.every((layer, i) => layer === b.layers[i]);
}

/**
 * @param {Figure} plot
 * @param {IndexState} state
 * @param {(Float32Array | null)[]} values
 * @param {string} label
 */
async function drawPairing(plot, state, values, label) {
  const c = colors();
  const [a, b] = [models[state.a], models[state.b]];
  const [x, y] = [values[state.a] ?? new Float32Array(), values[state.b] ?? new Float32Array()];
  const paired = sameHeads(a, b) && x.length === y.length;
  const fractions = range(101).map((i) => i / 100);
  const px = paired ? Array.from(x) : quantiles(x, fractions);
  const py = paired ? Array.from(y) : quantiles(y, fractions);
  const [low, high] = quantiles([...px, ...py], [0, 1]);
  const pad = 0.04 * (high - low) || 0.5;
  const side = clamp(plot.width(), 240, 560);
  const last = Math.max(1, a.layers[a.layers.length - 1]);
  await plot.draw([
    { type: "scatter", mode: "lines", x: [low - pad, high + pad], y: [low - pad, high + pad], hoverinfo: "skip", line: { color: c.muted, dash: "dash", width: 1 } },
    {
      type: "scatter", mode: "markers", x: px, y: py,
      marker: paired
        ? { size: 6, color: px.map((_, i) => a.layers[Math.floor(i / a.heads)]), cmin: 0, cmax: last, colorscale: SEQUENTIAL, line: { width: 0.5, color: theme.dark() ? c.muted : c.ground }, colorbar: bottomBar("layer", -0.18) }
        : { size: 6, color: c.sigma },
      customdata: px.map((_, i) => (paired ? [a.layers[Math.floor(i / a.heads)], i % a.heads] : null)),
      text: px.map((_, i) => `${paired ? `layer ${a.layers[Math.floor(i / a.heads)]}, head ${i % a.heads}` : `quantile ${fractions[i]}`}<br>${a.name} ${formatNumber(px[i])}<br>${b.name} ${formatNumber(py[i])}`),
      hovertemplate: "%{text}<extra></extra>",
    },
  ], {
    width: side, height: side - (paired ? 0 : 66) + 56, margin: { l: 64, r: 16, t: 12, b: paired ? 122 : 56 },
    xaxis: axis({ title: a.name, range: [low - pad, high + pad], nticks: 6 }), yaxis: axis({ title: b.name, range: [low - pad, high + pad], nticks: 6 }),
  }, {
    file: `pairing-${state.q}-${state.matrix}`,
    alt: `${label} of ${b.name} against ${a.name}.`,
    caption: [
      paired
        ? "A point is one head, the same layer and number in both models; click it to open it in the second. Where the models were trained apart, equal numbers mean nothing."
        : "The two models have no heads in common: a point is a quantile (every hundredth) of all heads of each.",
      " Dashed: equal.",
    ],
  });
}
