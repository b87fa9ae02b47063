/** The model of this page: its facts, and its numbers decoded when they are asked for. */

/**
 * @typedef {{name: string, label: string, long: string, input: string, output: string, rank: number, comparable: boolean}} Matrix
 * @typedef {{name: string, columns: string[], words: Record<string, string[]>, drawn: boolean}} Treatment
 * @typedef {{name: string, label: string, quantity: string, kind: string, statistic: string, diverging: boolean, predicted: ([string, string, string] | null)[]}} Column
 * @typedef {{name: string, label: string, formula: string, meaning: string, range: string, source: string, unit: string}} Quantity
 * @typedef {{matrix: number, layer: number, head: number}} Place numbers of a matrix, a layer and a head in the page's order
 */

const data = {
  /** @type {string} */ model: manifest.model,
  /** @type {Treatment[]} */ treatments: manifest.treatments,
  /** @type {Matrix[]} */ matrices: manifest.matrices,
  /** @type {number[]} numbers of the layers looked at */ layers: manifest.layers,
  /** @type {number} */ heads: manifest.n_heads,
  /** @type {Column[]} */ columns: manifest.columns,
  /** @type {Map<string, Column>} */ columnOf: new Map(manifest.columns.map((/** @type {Column} */ c) => [c.name, c])),
  /** @type {Record<string, Quantity>} */ quantities: Object.fromEntries(manifest.quantities.map((/** @type {Quantity} */ q) => [q.name, q])),
  /** @type {{self: number, rotation: number, ortho: number}[]} */ reference: manifest.reference,
  /** @type {string[]} */ pairs: manifest.pairs,

  /** @type {Map<string, Promise<any>>} */ decoded: new Map(),

  /**
   * Decode a block once; of the large ones only the latest are kept.
   * @template T
   * @param {string} name
   * @param {(name: string) => Promise<T>} decode
   * @returns {Promise<T>}
   */
  block(name, decode) {
    let promise = this.decoded.get(name);
    if (!promise) {
      promise = decode(name);
      promise.catch(() => this.decoded.delete(name));
    }
    this.decoded.delete(name);
    this.decoded.set(name, promise); // at the end: the latest used
    const large = [...this.decoded.keys()].filter((key) => key.startsWith("z-"));
    for (const key of large.slice(0, -8)) this.decoded.delete(key);
    return promise;
  },

  /**
   * One number per head matrix: matrix, then layer, then head.
   * @param {number} treatment
   * @param {string} name
   * @returns {Promise<Float64Array>}
   */
  async column(treatment, name) {
    if (name === "layer") return Float64Array.from(range(this.size), (i) => this.layers[this.place(i).layer]);
    if (name === "head") return Float64Array.from(range(this.size), (i) => this.place(i).head);
    if (!this.treatments[treatment].columns.includes(name)) return new Float64Array(this.size).fill(NaN);
    const rule = this.columnOf.get(name)?.predicted[treatment];
    if (!rule) return this.block(`column-${treatment}-${name}`, float64Block);
    return this.block(`column-${treatment}-${name}`, async (block) => {
      const [left, right] = await Promise.all(rule.slice(1).map((other) => this.column(treatment, other)));
      return predictedBlock(block, rule[0], left, right);
    });
  },

  /**
   * @param {number} treatment
   * @param {string[]} names
   * @returns {Promise<Record<string, Float64Array>>}
   */
  async columnsOf(treatment, names) {
    const arrays = await Promise.all(names.map((name) => this.column(treatment, name)));
    return Object.fromEntries(names.map((name, i) => [name, arrays[i]]));
  },

  get size() {
    return this.matrices.length * this.layers.length * this.heads;
  },

  /** @param {Place} place */
  index({ matrix, layer, head }) {
    return (matrix * this.layers.length + layer) * this.heads + head;
  },

  /**
   * @param {number} index
   * @returns {Place}
   */
  place(index) {
    const head = index % this.heads;
    const rest = (index - head) / this.heads;
    return { matrix: Math.floor(rest / this.layers.length), layer: rest % this.layers.length, head };
  },

  /**
   * Per-pair numbers of one layer: name -> (head, pair) in one array.
   * @param {number} treatment
   * @param {number} matrix
   * @param {number} layer
   * @returns {Promise<(name: string, head: number) => Float32Array>}
   */
  async layerPairs(treatment, matrix, layer) {
    const values = await this.block(`pairs-${treatment}-${matrix}-${layer}`, float32Block);
    const rank = this.matrices[matrix].rank;
    return (name, head) => {
      const start = (this.pairs.indexOf(name) * this.heads + head) * rank;
      return values.subarray(start, start + rank);
    };
  },

  /**
   * Z of one head, rows = output vectors, to the nearest thousandth.
   * @param {number} treatment
   * @param {Place} place
   * @returns {Promise<Float32Array[]>}
   */
  async Z(treatment, { matrix, layer, head }) {
    const planes = await this.block(`z-${treatment}-${matrix}-${layer}`, planesBlock);
    const rank = this.matrices[matrix].rank;
    return range(rank).map((i) => thousandths(planes, (head * rank + i) * rank, rank));
  },

  /**
   * Decode the layers above and below in a quiet moment, so that the next step is as quick as the next head.
   * @param {number} treatment
   * @param {Place} place
   */
  prefetch(treatment, { matrix, layer }) {
    if (document.readyState === "loading") return;
    whenIdle(() => {
      for (const near of [layer - 1, layer + 1].filter((l) => l >= 0 && l < this.layers.length)) {
        this.block(`pairs-${treatment}-${matrix}-${near}`, float32Block);
        this.block(`z-${treatment}-${matrix}-${near}`, planesBlock);
      }
    });
  },

  /**
   * @param {string} column
   * @returns {string}
   */
  label(column) {
    return this.columnOf.get(column)?.label ?? column;
  },
};

/**
 * @param {Place} place
 * @returns {string}
 */
function headName({ layer, head }) {
  return `Layer ${data.layers[layer]}, head ${head}`;
}

/**
 * @param {Place} place
 * @returns {string}
 */
function shortName({ layer, head }) {
  return `${data.layers[layer]}.${head}`;
}
