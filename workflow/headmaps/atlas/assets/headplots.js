/** The head's spectrum against its null, and its eigenvalues in the complex plane. */

const LEGEND = { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", font: { size: 11 }, itemclick: false, itemdoubleclick: false };

/**
 * @param {Figure} plot
 * @param {HeadData} head
 * @param {Float32Array} random mean, 5th and 95th percentile of random spectra whose squares sum to 1
 */
async function drawSpectrum(plot, head, random) {
  const c = colors();
  const sigma = Array.from(head.of("sigma"));
  const index = range(sigma.length);
  const norm = Math.sqrt(sigma.reduce((sum, s) => sum + (s * s || 0), 0));
  const null_ = range(3).map((row) => index.map((i) => norm * random[row * sigma.length + i]));
  const matrix = data.matrices[head.place.matrix];
  const line = (/** @type {number[]} */ y, /** @type {any} */ more) => ({ type: "scatter", mode: "lines", x: index, y, hoverinfo: "skip", ...more });
  await plot.draw([
    line(null_[2], { line: { width: 0 }, showlegend: false }),
    line(null_[1], { line: { width: 0 }, fill: "tonexty", fillcolor: c.fade, showlegend: false }),
    line(null_[0], { line: { color: c.muted, dash: "dash", width: 1.5 }, name: "random" }),
    line(sigma, { mode: "lines+markers", marker: { size: 4 }, line: { color: c.sigma, width: 1.6 }, name: "this head", hoverinfo: undefined, hovertemplate: "pair %{x}<br>σ %{y:.4g}<extra></extra>" }),
  ], {
    width: plot.width(), height: 320, margin: { l: 56, r: 16, t: 36, b: 48 }, xaxis: axis({ title: "pair", range: [-0.5, matrix.rank - 0.5], zeroline: false }), yaxis: axis({ title: "singular value", rangemode: "tozero" }),
    showlegend: true, legend: LEGEND,
  }, {
    file: `layer-${data.layers[head.place.layer]}-head-${head.place.head}-${matrix.name}-spectrum`,
    alt: `Singular values of ${headName(head.place)}, ${matrix.label} matrix, against random matrices of the same shape and norm.`,
    caption: [
      "A point is one singular value. Dashed: the mean over products of two Gaussian factors of the same shape, scaled to this head's ",
      definition("frobenius_norm", "Frobenius norm"), "; grey: 5th to 95th percentile, hidden where narrower than the line.",
    ],
  });
}

/**
 * @param {Figure} plot
 * @param {HeadData} head
 */
async function drawEigenvalues(plot, head) {
  const c = colors();
  const real = Array.from(head.of("eigenvalue_real"));
  const imaginary = Array.from(head.of("eigenvalue_imaginary"));
  const matrix = data.matrices[head.place.matrix];
  const reach = 1.08 * Math.max(1e-12, ...real.map((x, i) => Math.hypot(x, imaginary[i]) || 0));
  const part = (/** @type {string} */ name, /** @type {(x: number) => boolean} */ test, /** @type {any} */ marker) => {
    const which = range(real.length).filter((i) => test(real[i]));
    return {
      type: "scatter", mode: "markers", name, x: which.map((i) => real[i]), y: which.map((i) => imaginary[i]), marker: { size: 7, line: { width: 0 }, ...marker },
      hovertemplate: "%{x:.4g} + %{y:.4g} i<extra></extra>",
    };
  };
  const width = plot.width();
  const height = 350;
  const margin = { l: 56, r: 16, t: 36, b: 48 };
  const wide = ((width - margin.l - margin.r) / (height - margin.t - margin.b)) * reach;
  await plot.draw([
    part("real part ≥ 0", (x) => x >= 0, { color: c.sigma }),
    part("real part < 0", (x) => x < 0, { color: c.ortho, symbol: "diamond-open", line: { width: 1.5 } }),
  ], {
    width, height, margin,
    xaxis: axis({ title: "real part", range: [-wide, wide], zeroline: true, zerolinecolor: c.muted }),
    yaxis: axis({ title: "imaginary part", range: [-reach, reach], zeroline: true, zerolinecolor: c.muted }),
    showlegend: true, legend: LEGEND,
  }, {
    file: `layer-${data.layers[head.place.layer]}-head-${head.place.head}-${matrix.name}-eigenvalues`,
    alt: `The ${matrix.rank} non-zero eigenvalues of ${headName(head.place)}, ${matrix.label} matrix, in the complex plane.`,
    caption: ["A point is one eigenvalue of the head's matrix. To the right of zero a direction is amplified as it is (copying), to the left it is turned into its opposite; away from the horizontal axis, directions rotate into each other."],
  });
}
