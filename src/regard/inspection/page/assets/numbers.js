// Numbers as text, and small sums over arrays.

/**
 * A weight: four decimals, and what is too small for them in powers of ten, so that nothing but zero reads as zero.
 * @param {number} value
 */
export function formatWeight(value) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return withMinusSign(size < 0.001 || size >= 1e6 ? value.toExponential(2) : value.toFixed(4));
}

/**
 * A number on a scale: short.
 * @param {number} value
 */
export function formatTick(value) {
  if (!Number.isFinite(value) || value === 0) return formatWeight(value);
  const size = Math.abs(value);
  if (size < 0.001 || size >= 1e5) return withMinusSign(value.toExponential(size < 1e-99 ? 0 : 1).replace(".0e", "e"));
  return withMinusSign(String(Number(value.toPrecision(2))));
}

/** @param {string} text */
function withMinusSign(text) {
  return text.replaceAll("-", "−");
}

/**
 * @param {number} value
 * @param {number} decimals
 */
export function formatFixed(value, decimals) {
  if (!Number.isFinite(value)) return formatWeight(value);
  const text = value.toFixed(decimals);
  return Number(text) === 0 ? text.replace("-", "") : withMinusSign(text);
}

/**
 * A share or a probability in percent: none but zero reads as zero, and none but one as all.
 * @param {number} value from 0 to 1
 */
export function formatPercent(value) {
  if (!Number.isFinite(value)) return formatWeight(value);
  if (value > 0 && value < 0.01) return "<1 %";
  return `${value < 1 && value >= 0.995 ? ">99" : Math.round(value * 100)} %`;
}

/** @param {number} value a whole one */
export function formatCount(value) {
  return String(value).replace(/\B(?=(\d{3})+$)/g, ",");
}

/**
 * "1 head", "2 heads".
 * @param {number} count
 * @param {string} thing
 */
export function plural(count, thing) {
  return `${formatCount(count)} ${thing}${count === 1 ? "" : "s"}`;
}

/**
 * @param {number} low
 * @param {number} value
 * @param {number} high
 */
export function clamp(low, value, high) {
  return Math.max(low, Math.min(high, value));
}

/**
 * The least and the greatest finite number, and the least above zero; NaN where there is none.
 * @param {Float32Array} values
 */
export function extent(values) {
  let [low, high, least] = [Infinity, -Infinity, Infinity];
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (value - value !== 0) continue; // NaN and the infinities
    if (value < low) low = value;
    if (value > high) high = value;
    if (value > 0 && value < least) least = value;
  }
  return low <= high ? { low, high, least: least === Infinity ? NaN : least } : { low: NaN, high: NaN, least: NaN };
}

/**
 * The indices of the largest values, by size without sign, the largest first.
 * @param {ArrayLike<number>} values
 * @param {number} count
 */
export function largest(values, count) {
  const order = Array.from({ length: values.length }, (_, i) => i).filter((i) => !Number.isNaN(values[i]));
  return order.sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]) || a - b).slice(0, count);
}

/**
 * Means of blocks of high × wide cells of a matrix; the last blocks may be smaller.
 * @param {Float32Array} values
 * @param {number} rows
 * @param {number} columns
 * @param {number} high
 * @param {number} wide
 */
export function blockMeans(values, rows, columns, high, wide) {
  const [down, across] = [Math.ceil(rows / high), Math.ceil(columns / wide)];
  if (high === 1 && wide === 1) return { rows, columns, values };
  const sums = new Float64Array(down * across);
  for (let i = 0; i < rows; i++) {
    const to = Math.floor(i / high) * across;
    for (let j = 0; j < columns; j++) sums[to + Math.floor(j / wide)] += values[i * columns + j];
  }
  const means = new Float32Array(down * across);
  for (let b = 0; b < means.length; b++) {
    const [i, j] = [Math.floor(b / across), b % across];
    means[b] = sums[b] / (Math.min(high, rows - i * high) * Math.min(wide, columns - j * wide));
  }
  return { rows: down, columns: across, values: means };
}
