// Colours of numbers: one ramp for weights from zero up, one for those on both sides of zero; both can be told apart by
// colour-blind people and in grey. Knows nothing of scales.

// Rising steadily in lightness, from violet over green to yellow.
const RISING = [
  [68, 1, 84],
  [71, 39, 119],
  [62, 74, 137],
  [49, 104, 142],
  [38, 130, 142],
  [31, 158, 137],
  [53, 183, 121],
  [110, 206, 88],
  [181, 222, 43],
  [253, 231, 37]
];
// Orange below zero, violet above it, pale in the middle.
const BOTH = [
  [127, 59, 8],
  [179, 88, 6],
  [224, 130, 20],
  [253, 184, 99],
  [250, 218, 178],
  [224, 222, 222],
  [208, 208, 230],
  [178, 171, 210],
  [128, 115, 172],
  [84, 39, 136],
  [45, 0, 75]
];
// The same on a dark page, where what is near zero is dark.
const BOTH_DARK = [
  [255, 205, 140],
  [240, 150, 50],
  [190, 105, 25],
  [120, 75, 40],
  [52, 54, 60],
  [80, 72, 118],
  [115, 102, 172],
  [160, 148, 218],
  [212, 202, 250]
];

/**
 * 256 colours between the given ones, as pixels (little-endian: red is the lowest byte).
 * @param {number[][]} stops
 */
function ramp(stops) {
  const colours = new Uint32Array(256);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (stops.length - 1);
    const from = Math.min(stops.length - 2, Math.floor(at));
    const [red, green, blue] = stops[from].map((a, c) => Math.round(a + (stops[from + 1][c] - a) * (at - from)));
    colours[i] = pixel(red, green, blue);
  }
  return colours;
}

/**
 * @param {number} red
 * @param {number} green
 * @param {number} blue
 */
function pixel(red, green, blue) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

const RAMPS = { rising: ramp(RISING), both: ramp(BOTH), dark: ramp(BOTH_DARK) };

/** @param {boolean} signed whether numbers below zero have colours too */
export function rampFor(signed) {
  return signed ? (isDark() ? RAMPS.dark : RAMPS.both) : RAMPS.rising;
}

/** Whether the page is dark now. */
export function isDark() {
  return document.documentElement.dataset.theme === "dark";
}

/** The colours that are no place on a ramp: a zero, a cell nobody may look at, and what is not a number. */
export function plainColours() {
  return isDark()
    ? { zero: pixel(70, 74, 84), masked: pixel(30, 32, 38), odd: pixel(255, 105, 180), waiting: pixel(24, 26, 31) }
    : {
        zero: pixel(255, 255, 255),
        masked: pixel(226, 224, 218),
        odd: pixel(214, 0, 110),
        waiting: pixel(244, 242, 237)
      };
}

/** @param {number} colour a pixel */
export function css(colour) {
  return `rgb(${colour & 255}, ${(colour >> 8) & 255}, ${(colour >> 16) & 255})`;
}

/** @type {Map<string, string>} read once, because charts ask for them at every frame */
const inks = new Map();

/**
 * A colour or a font of the style sheet.
 * @param {string} name
 */
export function ink(name) {
  let found = inks.get(name);
  if (found === undefined) {
    found = getComputedStyle(document.documentElement)
      .getPropertyValue("--" + name)
      .trim();
    inks.set(name, found);
  }
  return found;
}

/** The page has turned dark or light. */
export function forgetInks() {
  inks.clear();
}
