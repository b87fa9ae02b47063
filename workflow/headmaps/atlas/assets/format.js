/** Numbers and names as the pages write them. */

/**
 * Four significant digits, as every view shows numbers; `exact` values are in the downloads.
 * @param {number} value
 * @returns {string}
 */
function formatNumber(value) {
  if (Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return minus(String(value));
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return minus(value.toExponential(3));
  return minus(value.toPrecision(4));
}

/**
 * @param {string} text
 * @returns {string} with the typographic minus sign
 */
function minus(text) {
  return text.replace(/-/g, "−");
}

/**
 * @param {number} share between 0 and 1
 * @returns {string}
 */
function formatShare(share) {
  return Number.isNaN(share) ? "–" : `${(100 * share).toPrecision(3)} %`;
}

/**
 * @param {number} n
 * @returns {string} 1st, 2nd, 3rd ...
 */
function ordinal(n) {
  const tens = n % 100;
  if (tens >= 11 && tens <= 13) return `${n}th`;
  return `${n}${["th", "st", "nd", "rd"][n % 10] ?? "th"}`;
}

/**
 * @param {number} n
 * @returns {string} with separated thousands
 */
function formatCount(n) {
  return n.toLocaleString("en-US");
}

/**
 * Quantile of finite values, linear between neighbours.
 * @param {ArrayLike<number>} values
 * @param {number[]} at fractions
 * @returns {number[]}
 */
function quantiles(values, at) {
  const sorted = Float64Array.from(values).filter(Number.isFinite).sort();
  return at.map((fraction) => {
    if (!sorted.length) return NaN;
    const place = fraction * (sorted.length - 1);
    const low = Math.floor(place);
    const high = Math.min(low + 1, sorted.length - 1);
    return sorted[low] + (place - low) * (sorted[high] - sorted[low]);
  });
}

/**
 * @param {number} value
 * @param {number} low
 * @param {number} high
 */
function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}

/**
 * @param {number} n
 * @returns {number[]} 0 .. n - 1
 */
function range(n) {
  return Array.from({ length: n }, (_, i) => i);
}
