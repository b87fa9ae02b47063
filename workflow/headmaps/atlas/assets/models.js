/** The models of the index page, their numbers, and the state in its address. */

/**
 * @typedef {{
 *   name: string, href: string, treatment: string, layers: number[], n_layers: number, heads: number, kv_heads: number,
 *   d_model: number, dtype: string, matrices: {name: string, rank: number}[], columns: string[],
 * }} Model
 * @typedef {{q: string, matrix: string, a: number, b: number}} IndexState
 */

const models = /** @type {Model[]} */ (manifest.models);

/** Matrices that any model has, in the order met, with their names for readers. */
const matrixNames = /** @type {[string, string][]} */ (manifest.matrices);

const store = {
  /** @type {Map<string, Promise<Float32Array>>} */ decoded: new Map(),

  /**
   * A quantity of a model's heads: layer, then head; null if the model lacks the matrix or the quantity.
   * @param {number} number of the model
   * @param {string} matrix
   * @param {string} quantity
   * @returns {Promise<Float32Array | null>}
   */
  async values(number, matrix, quantity) {
    const model = models[number];
    const place = model.matrices.findIndex((m) => m.name === matrix);
    if (place < 0 || !model.columns.includes(quantity)) return null;
    const key = `values-${number}-${quantity}`;
    const promise = this.decoded.get(key) ?? float32Block(key);
    this.decoded.set(key, promise);
    const per = model.layers.length * model.heads;
    return (await promise).subarray(place * per, (place + 1) * per);
  },
};

/** @returns {IndexState} */
function readIndexState() {
  const query = new URLSearchParams(location.hash.replace(/^#\/?/, ""));
  const quantities = manifest.quantities.map((/** @type {{name: string}} */ q) => q.name);
  const model = (/** @type {string} */ key, /** @type {number} */ otherwise) => {
    const place = models.findIndex((m) => m.name === query.get(key));
    return place >= 0 ? place : otherwise;
  };
  const q = query.get("q") ?? "";
  const matrix = query.get("matrix") ?? "";
  return {
    q: quantities.includes(q) ? q : "self_mean",
    matrix: matrixNames.some(([name]) => name === matrix) ? matrix : matrixNames[0][0],
    a: model("a", 0), b: model("b", Math.min(1, models.length - 1)),
  };
}

/** @param {IndexState} state */
function writeIndexState(state) {
  const query = new URLSearchParams({ q: state.q, matrix: state.matrix, a: models[state.a].name, b: models[state.b].name });
  return `#/${query}`;
}

const CATEGORIES = {
  light: ["#0072b2", "#d55e00", "#00815c", "#a3568a", "#8a6d00", "#1f8fbf"],
  dark: ["#56b4e9", "#ff8a4c", "#2fc795", "#dd9cc8", "#f0e442", "#9ad4f5"],
};

/**
 * A few models have colours that differ, many a colour by their order.
 * @param {number} number
 */
function modelColor(number) {
  const few = CATEGORIES[theme.dark() ? "dark" : "light"];
  return models.length <= few.length ? few[number] : sequentialColor(number / (models.length - 1));
}

const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
