/** Packed numbers: the inverse of headmaps/atlas/packing.py. */

/** The page's small facts, as headmaps/atlas/data.py wrote them. */
const manifest = JSON.parse(document.getElementById("manifest")?.textContent ?? "{}");

const BLOCK_POLL_MS = 15;

/**
 * The text of a block. A page of a large model is shown before all of it has been read, so a block may be still to come.
 * @param {string} name
 * @returns {Promise<string>}
 */
async function blockText(name) {
  const id = `block-${name}`;
  for (;;) {
    const loading = document.readyState === "loading";
    const element = document.getElementById(id);
    if (element && (element.nextElementSibling || !loading)) return element.textContent ?? "";
    if (!loading) throw new Error(`this page holds no block "${name}"; make it again with snakemake`);
    await new Promise((resolve) => setTimeout(resolve, BLOCK_POLL_MS));
  }
}

/**
 * @param {string} text base64
 * @returns {Uint8Array<ArrayBuffer>}
 */
function fromBase64(text) {
  const native = /** @type {any} */ (Uint8Array).fromBase64; // browsers since 2025; ten times as fast
  if (native) return native.call(Uint8Array, text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/**
 * @param {string} text base64 of raw deflate
 * @returns {Promise<Uint8Array<ArrayBuffer>>}
 */
async function inflate(text) {
  const stream = new Blob([fromBase64(text)]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/**
 * Byte planes back to numbers in memory order.
 * @param {Uint8Array} planes
 * @param {number} itemSize
 * @returns {ArrayBuffer}
 */
function joinPlanes(planes, itemSize) {
  const count = planes.length / itemSize;
  const bytes = new Uint8Array(planes.length);
  for (let plane = 0; plane < itemSize; plane++) {
    const from = plane * count;
    for (let i = 0; i < count; i++) bytes[i * itemSize + plane] = planes[from + i];
  }
  return bytes.buffer;
}

/**
 * @param {string} name
 * @returns {Promise<Float64Array>}
 */
async function float64Block(name) {
  return new Float64Array(joinPlanes(await inflate(await blockText(name)), 8));
}

/**
 * A column that follows from two others: what they predict, in the bits of which the stored ones are changed.
 * @param {string} name
 * @param {string} operation
 * @param {Float64Array} left
 * @param {Float64Array} right
 * @returns {Promise<Float64Array>}
 */
async function predictedBlock(name, operation, left, right) {
  const change = new Uint32Array(joinPlanes(await inflate(await blockText(name)), 8));
  const values = left.map((value, i) => {
    const guess = operation === "-" ? value - right[i] : value / right[i];
    return Number.isNaN(guess) ? 0 : guess;
  });
  const bits = new Uint32Array(values.buffer);
  for (let i = 0; i < bits.length; i++) bits[i] ^= change[i];
  return values;
}

/**
 * @param {string} name
 * @returns {Promise<Float32Array>}
 */
async function float32Block(name) {
  return new Float32Array(joinPlanes(await inflate(await blockText(name)), 4));
}

/**
 * The two byte planes of 16-bit integers, left apart: one head of many is taken out at a time.
 * @param {string} name
 * @returns {Promise<Uint8Array>}
 */
async function planesBlock(name) {
  return inflate(await blockText(name));
}

/**
 * Zigzag 16-bit integers: 0, 1, 2, 3 ... stand for 0, -1, 1, -2 ... thousandths, 65535 for a missing number.
 * @param {Uint8Array} planes low bytes, then high bytes
 * @param {number} start
 * @param {number} count
 * @returns {Float32Array}
 */
function thousandths(planes, start, count) {
  const high = planes.length / 2;
  const values = new Float32Array(count);
  for (let i = 0; i < count; i++) {
    const zigzag = planes[start + i] | (planes[high + start + i] << 8);
    values[i] = zigzag === 65535 ? NaN : ((zigzag >>> 1) ^ -(zigzag & 1)) / 1000;
  }
  return values;
}
