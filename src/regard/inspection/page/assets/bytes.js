// Numbers out of text: base64 to arrays, half precision to single. Knows nothing of what the numbers mean.

/**
 * @param {string} text base64
 * @returns {Uint8Array}
 */
function bytesOf(text) {
  const quick = /** @type {{fromBase64?: (text: string) => Uint8Array}} */ (/** @type {unknown} */ (Uint8Array));
  if (quick.fromBase64) return quick.fromBase64(text); // newer browsers, ten times faster
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/**
 * Little-endian float32. Every machine that runs a browser today is little-endian.
 * @param {string} text base64
 */
export function singles(text) {
  const bytes = bytesOf(text);
  if (bytes.length % 4) throw new Error("the numbers of this page are cut off: write the page again");
  return new Float32Array(bytes.buffer);
}

/**
 * The bits of little-endian float16, for `single`.
 * @param {string} text base64
 */
export function halves(text) {
  const bytes = bytesOf(text);
  if (bytes.length % 2) throw new Error("the numbers of this page are cut off: write the page again");
  return new Uint16Array(bytes.buffer);
}

/**
 * A half as a number: sign, 5 bits of exponent, 10 of fraction.
 * @param {number} half its bits
 */
function single(half) {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 31;
  const fraction = half & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/** @type {Float32Array | null} */
let everyHalf = null;

/**
 * Many halves as numbers, through a table of all 65,536 of them.
 * @param {Uint16Array} bits
 */
export function singlesOfHalves(bits) {
  if (!everyHalf) {
    everyHalf = new Float32Array(65536);
    for (let i = 0; i < 65536; i++) everyHalf[i] = single(i);
  }
  const out = new Float32Array(bits.length);
  for (let i = 0; i < bits.length; i++) out[i] = everyHalf[bits[i]];
  return out;
}
