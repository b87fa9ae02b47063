/** The head's map: Z with the strips of the published figures 3 and 5 above it and to its left. */

const BIAS_DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];

/**
 * @typedef {{place: Place, Z: Float32Array[], of: (name: string) => Float32Array}} HeadData
 */

/**
 * Sizes in pixels of the map's parts; the same for every head of a matrix, so that nothing moves between heads.
 * @param {number} width
 * @param {{input: string[], output: string[], band: boolean}} biases
 */
function headmapSizes(width, biases) {
  const narrow = width < 520;
  const margin = { l: narrow ? 44 : 56, r: narrow ? 8 : 16, t: narrow ? 74 : 56, b: 104 };
  const gap = narrow ? 8 : 12;
  const strip = narrow ? 40 : 72;
  const leftStrips = biases.output.length || biases.band ? 2 : 1;
  const side = width - margin.l - margin.r - leftStrips * (strip + gap);
  const tall = narrow ? 96 : 140;
  const top = tall + gap + (biases.input.length || biases.band ? strip + gap : 0);
  return { narrow, margin, gap, strip, leftStrips, side, tall, width, innerWidth: width - margin.l - margin.r, innerHeight: side + top };
}

/** Names of the lines of a side: `bias_input_b_O` -> side input, vector b_O. */
function biasNames(/** @type {string} */ side, /** @type {(name: string) => Float32Array} */ of) {
  return data.pairs.filter((name) => name.startsWith(`bias_${side}`) && of(name).some(Number.isFinite));
}

/** Whether sampled hidden states give a band. */
function hasBand(/** @type {(name: string) => Float32Array} */ of) {
  return data.pairs.includes("band_input_low") && of("band_input_low").some(Number.isFinite);
}

/** @param {string} name */
function biasLabel(name) {
  return name.replace(/^bias_(input|output)_?/, "").replace(/_W_/g, " W_") || "bias";
}

/**
 * @param {Figure} plot
 * @param {State} state
 * @param {HeadData} head
 */
async function drawHeadmap(plot, state, head) {
  const c = colors();
  const matrix = data.matrices[head.place.matrix];
  const band = hasBand(head.of);
  const biases = { input: biasNames("input", head.of), output: biasNames("output", head.of), band };
  const sizes = headmapSizes(plot.width(), biases);
  const axes = headmapAxes(sizes, matrix, biases);
  const traces = [heatTrace(head, sizes), ...topTraces(head, biases), ...leftTraces(head, biases)];
  const reach = Math.max(0.05, ...head.Z.map((row) => row.reduce((m, v) => Math.max(m, Math.abs(v) || 0), 0)));
  await plot.draw(traces, {
    width: sizes.width, height: sizes.innerHeight + sizes.margin.t + sizes.margin.b, margin: sizes.margin, ...axes,
    showlegend: true, legend: { orientation: "h", x: 0, xanchor: "left", y: 1 + 8 / sizes.innerHeight, yanchor: "bottom", font: { size: 11 }, itemclick: false, itemdoubleclick: false },
    coloraxis: { cmin: -reach, cmax: reach, colorscale: divergingScale(), colorbar: bottomBar("Z: output vector · input vector", -56 / sizes.innerHeight) },
  }, {
    file: `layer-${data.layers[head.place.layer]}-head-${head.place.head}-${matrix.name}-map`,
    alt: `Heat map of the ${matrix.rank} by ${matrix.rank} scalar products of output and input vectors of ${headName(head.place)}, ${matrix.label} matrix, with its singular values along both sides.`,
    caption: [
      `A cell is v·u, of one output vector (row: ${matrix.output}) and one input vector (column: ${matrix.input}), singular values descending; the diagonal is `,
      definition("overlap_mean", "overlap"), ". Above: sigma, and sigma times ", definition("self_mean", "self"), ", ",
      definition("ortho_mean", "ortho"), " and ", definition("rotation_mean", "rotation"), " of each pair. Left: sigma, with a dashed line at 1.",
      biases.input.length + biases.output.length ? " Purple: bias vectors projected on the input and output vectors." : " The checkpoint has no bias here.",
      band ? " Brown: the 0.01 to 0.99 quantiles of sampled hidden states on them." : " The band of hidden states is left out: no sampled states were given.",
      matrix.comparable ? " Z is kept to the nearest 0.001." : " The two sides are different streams, so that Z does not exist.",
      state.treatment !== drawnTreatment(state) ? ` Drawn for ${data.treatments[drawnTreatment(state)].name} weights: the others' maps would make this page too large.` : "",
    ],
  });
}

/**
 * @param {HeadData} head
 * @param {ReturnType<typeof headmapSizes>} sizes
 */
function heatTrace(head, sizes) {
  const rank = head.Z.length;
  return {
    type: "heatmap", z: head.Z, x: range(rank), y: range(rank), coloraxis: "coloraxis", xgap: sizes.side / rank > 9 ? 0.5 : 0, ygap: sizes.side / rank > 9 ? 0.5 : 0,
    hovertemplate: "output vector %{y}, input vector %{x}<br>v·u = %{z:.3f}<extra></extra>", showlegend: false,
  };
}

/**
 * @param {ReturnType<typeof headmapSizes>} sizes
 * @param {Matrix} matrix
 * @param {{input: string[], output: string[], band: boolean}} biases
 */
function headmapAxes(sizes, matrix, biases) {
  const { innerWidth, innerHeight, side, gap, tall, strip, leftStrips } = sizes;
  const across = (/** @type {number} */ from, /** @type {number} */ size) => [from / innerWidth, Math.min(1, (from + size) / innerWidth)];
  const up = (/** @type {number} */ from, /** @type {number} */ size) => [from / innerHeight, Math.min(1, (from + size) / innerHeight)];
  const left = leftStrips * (strip + gap);
  const turned = { anchor: "y", range: undefined, nticks: 3, autorange: "reversed", tickangle: 0, rangemode: "tozero", tickfont: { size: 10, color: colors().muted } };
  /** @type {Record<string, any>} */
  const axes = {
    xaxis: axis({ domain: across(left, side), anchor: "y", title: sizes.narrow ? "input" : `input: ${matrix.input}`, range: [-0.5, matrix.rank - 0.5], showgrid: false, zeroline: false }),
    yaxis: axis({ domain: up(0, side), anchor: leftStrips > 1 ? "x3" : "x2", title: sizes.narrow ? "output" : `output: ${matrix.output}`, range: [matrix.rank - 0.5, -0.5], showgrid: false, zeroline: false }),
    yaxis2: axis({ domain: up(side + gap, tall), anchor: "x", nticks: 4, zeroline: true, zerolinecolor: colors().muted }),
    xaxis2: axis({ domain: across(left - strip - gap, strip), ...turned, title: "σ" }),
  };
  if (leftStrips > 1) axes.xaxis3 = axis({ domain: across(0, strip), ...turned, rangemode: "normal", zeroline: true, zerolinecolor: colors().muted, title: "bias" });
  if (biases.input.length || biases.band) axes.yaxis3 = axis({ domain: up(side + tall + 2 * gap, strip), anchor: "x", nticks: 3, zeroline: true, zerolinecolor: colors().muted });
  return axes;
}

/**
 * @param {HeadData} head
 * @param {{input: string[], output: string[], band: boolean}} biases
 */
function topTraces(head, biases) {
  const c = colors();
  const sigma = head.of("sigma");
  const index = range(sigma.length);
  const times = (/** @type {(i: number) => number} */ f) => index.map((i) => sigma[i] * f(i));
  const line = (/** @type {string} */ name, /** @type {number[]} */ y, /** @type {string} */ color, /** @type {string} */ dash) => ({
    type: "scatter", mode: "lines", name, x: index, y, yaxis: "y2", line: { color, dash, width: 1.6 }, hovertemplate: `pair %{x}<br>${name} %{y:.4g}<extra></extra>`,
  });
  const overlap = head.of("overlap");
  const biasLines = biases.input.map((name, i) => ({
    type: "scatter", mode: "lines", name: biasLabel(name), x: index, y: Array.from(head.of(name)), yaxis: "y3", line: { color: c.bias, width: 1.4, dash: BIAS_DASHES[i % BIAS_DASHES.length] },
    hovertemplate: `input vector %{x}<br>${biasLabel(name)} %{y:.4g}<extra></extra>`,
  }));
  return [
    line("σ", Array.from(sigma), c.sigma, "solid"),
    line("σ self", times((i) => Math.abs(overlap[i])), c.self, "dash"),
    line("σ ortho", times((i) => head.of("ortho")[i]), c.ortho, "solid"),
    line("σ rotation", times((i) => head.of("rotation")[i]), c.rotation, "dot"),
    ...(biases.band ? bandTraces(head, "input") : []),
    ...biasLines,
  ];
}

/**
 * The closed outline of the band on one side.
 * @param {HeadData} head
 * @param {"input" | "output"} side
 */
function bandTraces(head, side) {
  const low = Array.from(head.of(`band_${side}_low`));
  const high = Array.from(head.of(`band_${side}_high`));
  const along = [...range(low.length), ...range(low.length).reverse()];
  const across = [...low, ...high.reverse()];
  const places = side === "input" ? { x: along, y: across, yaxis: "y3" } : { x: across, y: along, xaxis: "x3" };
  return [{
    type: "scatter", mode: "none", name: "hidden states", ...places, fill: "toself", fillcolor: `${colors().band}66`, showlegend: side === "input", hoverinfo: "skip",
  }];
}

/**
 * @param {HeadData} head
 * @param {{input: string[], output: string[], band: boolean}} biases
 */
function leftTraces(head, biases) {
  const c = colors();
  const sigma = Array.from(head.of("sigma"));
  const index = range(sigma.length);
  const shared = new Set(biases.input.map(biasLabel));
  return [
    {
      type: "scatter", mode: "lines", x: sigma, y: index, xaxis: "x2", showlegend: false, line: { color: c.sigma, width: 1.6 },
      hovertemplate: "output vector %{y}<br>σ %{x:.4g}<extra></extra>",
    },
    { type: "scatter", mode: "lines", x: [1, 1], y: [0, sigma.length - 1], xaxis: "x2", showlegend: false, hoverinfo: "skip", line: { color: c.muted, dash: "dash", width: 1 } },
    ...(biases.band ? bandTraces(head, "output") : []),
    ...biases.output.map((name, i) => ({
      type: "scatter", mode: "lines", name: biasLabel(name), x: Array.from(head.of(name)), y: index, xaxis: "x3", showlegend: !shared.has(biasLabel(name)),
      line: { color: c.bias, width: 1.4, dash: BIAS_DASHES[i % BIAS_DASHES.length] }, hovertemplate: `output vector %{y}<br>${biasLabel(name)} %{x:.4g}<extra></extra>`,
    })),
  ];
}
