/** Controls that know the model: links to definitions, the matrix switch, lists of columns. */

/**
 * A link to the definition of a column's quantity, with its label.
 * @param {string} column
 * @param {string} [text]
 */
function definition(column, text) {
  const quantity = data.columnOf.get(column)?.quantity || column;
  return link(writeHash({ ...app.state, view: "definitions", of: quantity }), text ?? data.label(column));
}

/**
 * The matrix switch that most views share.
 * @returns {{root: HTMLElement, set: (value: string) => void}}
 */
function matrixSwitch() {
  return segmented("Matrix", data.matrices.map((m) => [m.name, m.label]), (name) =>
    app.go({ matrix: data.matrices.findIndex((m) => m.name === name), page: 1 }, "replace"),
  );
}

/**
 * Columns in groups for a drop-down list: measured ones first, then per baseline and statistic.
 * @param {Column[]} columns
 * @returns {{label: string, options: [string, string][]}[]}
 */
function columnGroups(columns) {
  /** @type {Map<string, [string, string][]>} */
  const groups = new Map([["Measured", []]]);
  const titles = /** @type {Record<string, string>} */ ({
    precision: "changes by storage", z: "z-scores", difference: "differences", ratio: "ratios", p: "p-values", p_adjusted: "adjusted p-values",
    mean: "means of the draws", sd: "standard deviations of the draws", draws: "number of draws",
  });
  const order = ["", ...Object.keys(titles)];
  const sorted = [...columns].sort((a, b) => order.indexOf(a.statistic) - order.indexOf(b.statistic));
  for (const column of sorted) {
    const title = column.statistic === "precision" ? "Change under storage rounding" : column.kind ? `Against ${column.kind}: ${titles[column.statistic]}` : "Measured";
    if (!groups.has(title)) groups.set(title, []);
    groups.get(title)?.push([column.name, column.label]);
  }
  return [...groups].map(([label, options]) => ({ label, options }));
}
