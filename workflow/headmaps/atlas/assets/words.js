/** A head in words: the numbers of heads.csv as sentences, and all of them as a table. */

/**
 * @param {State} state
 * @param {Place} place
 * @param {Record<string, Float64Array>} columns
 */
function headWords(state, place, columns) {
  const i = data.index(place);
  const value = (/** @type {string} */ name) => (columns[name] ? columns[name][i] : NaN);
  const number = (/** @type {string} */ name) => make("span", { class: "number", "data-column": name }, formatNumber(value(name)));
  const matrix = data.matrices[place.matrix];
  if (Number.isNaN(value("self_mean"))) return [make("p", {}, "This head's matrix is zero: it has no singular pairs, and no numbers.")];
  const copied = place.matrix === 0 && matrix.name === "value" ? "what it writes" : "the key side";
  const paragraphs = [
    make(
      "p", {}, `Over the ${formatNumber(value("rank"))} pairs of this ${matrix.label} matrix, ${copied} lies on average `, number("self_mean"),
      " along the direction read by the same pair (", definition("self_mean", "self"), "), ", number("rotation_mean"), " along other directions it reads (",
      definition("rotation_mean", "rotation"), ") and ", number("ortho_mean"), " outside all it reads (", definition("ortho_mean", "ortho"), ").",
    ),
    make(
      "p", {}, "Weighted by strength, ", make("strong", {}, formatShare(value("self_energy"))), " of its energy stays in its own direction, ",
      make("strong", {}, formatShare(value("rotation_energy"))), " turns within what it reads, and ", make("strong", {}, formatShare(value("ortho_energy"))), " goes elsewhere.",
    ),
  ];
  for (const kind of baselineKinds(state)) {
    const mean = value(`self_mean_${kind}_mean`);
    if (Number.isNaN(mean)) continue;
    paragraphs.push(make(
      "p", {}, `Against ${formatCount(value(`${kind}_draws`))} ${kind} draws, whose mean self is `, number(`self_mean_${kind}_mean`), ": z = ", number(`self_mean_${kind}_z`),
      ...(Number.isNaN(value(`self_mean_${kind}_p`)) ? [] : [", p = ", number(`self_mean_${kind}_p`)]), ".",
    ));
  }
  const unresolved = value("unresolved_pairs");
  if (unresolved > 0) {
    paragraphs.push(make(
      "p", {}, number("unresolved_pairs"), ` of its pairs have singular values closer than the stored precision tells apart (`,
      definition("unresolved_pairs", "unresolved pairs"), "): their vectors are determined only together.",
    ));
  }
  const place_ = rankOf(columns.self_mean, place);
  paragraphs.push(make("p", {}, `By mean self it is ${ordinal(place_.rank)} of ${formatCount(place_.of)} heads.`));
  return paragraphs;
}

/** @param {State} state */
function baselineKinds(state) {
  const there = new Set(data.treatments[state.treatment].columns);
  return [...new Set(data.columns.filter((c) => c.kind && there.has(c.name)).map((c) => c.kind))];
}

/**
 * Rank of a head among the heads of its matrix, the largest first.
 * @param {Float64Array} values
 * @param {Place} place
 */
function rankOf(values, place) {
  const per = data.layers.length * data.heads;
  const own = values[data.index(place)];
  let rank = 1;
  let of = 0;
  for (let i = place.matrix * per; i < (place.matrix + 1) * per; i++) {
    if (values[i] > own) rank += 1;
    if (!Number.isNaN(values[i])) of += 1;
  }
  return { rank, of };
}

/** @type {WeakMap<Float64Array, boolean>} */
const differing = new WeakMap();

/**
 * Whether a column has more than one value: else its heads have no order.
 * @param {Float64Array} values
 */
function differs(values) {
  if (!differing.has(values)) differing.set(values, new Set(values.filter(Number.isFinite)).size > 1);
  return differing.get(values);
}

/**
 * All numbers of a head: a row per quantity, and per baseline its mean, z and p.
 * @param {State} state
 * @param {Place} place
 * @param {Record<string, Float64Array>} columns
 */
function numbersTable(state, place, columns) {
  const i = data.index(place);
  const kinds = baselineKinds(state);
  const there = data.treatments[state.treatment].columns;
  const precise = data.columns.some((c) => c.statistic === "precision" && there.includes(c.name));
  const cell = (/** @type {string} */ name) =>
    make("td", columns[name] ? { class: "number", "data-column": name } : {}, columns[name] ? formatNumber(columns[name][i]) : "");
  const head = make(
    "thead", {},
    make("tr", {}, ...["Quantity", "Value", ...(precise ? ["Storage"] : []), "Place"].map((text) => make("th", { scope: "col", rowspan: kinds.length ? 2 : 1 }, text)), ...kinds.map((kind) => make("th", { scope: "colgroup", colspan: 3, class: "over" }, kind))),
    ...(kinds.length ? [make("tr", {}, ...kinds.flatMap(() => ["mean", "z", "p"].map((text) => make("th", { scope: "col" }, text))))] : []),
  );
  const rows = data.columns.filter((c) => !c.statistic && there.includes(c.name)).flatMap((column) => {
    const { rank, of } = rankOf(columns[column.name], place);
    if (!of) return []; // a quantity of the other matrix
    const nothing = Number.isNaN(columns[column.name][i]) || !differs(columns[column.name]);
    return [make(
      "tr", {}, make("th", { scope: "row" }, definition(column.name)), cell(column.name),
      ...(precise ? [cell(`precision_${column.name}`)] : []), make("td", { class: "number small" }, nothing ? "" : `${rank} / ${of}`),
      ...kinds.flatMap((kind) => ["mean", "z", "p"].map((statistic) => cell(`${column.name}_${kind}_${statistic}`))),
    )];
  });
  const words = [
    "Place: rank among the heads of this matrix, the largest first. ",
    precise ? "Storage: how much the number changes under one draw of rounding noise of the stored weights. " : "",
    kinds.length ? "Under each baseline: mean of its draws, z-score and p-value of this head." : "",
  ];
  return [
    make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "All numbers of this head" }, make("table", { class: "numbers" }, head, make("tbody", {}, ...rows))),
    make("p", { class: "caption" }, ...words),
  ];
}
