// Colour scales: colour maps, scales from numbers to colours, and their legends. The maps rise steadily in lightness,
// so that they can be read in grey and by colour-blind people. This file does not know where the numbers come from.

import { make, sizeCanvas } from "./dom.js";
import { clamp, formatTick } from "./numbers.js";

// Zero is the paper of the page, in light and in dark; more is more ink. Each colour has its place from 0 to 1.
/** @type {Record<string, [number, number[]][]>} */
const STOPS = {
  rising: [
    [0, [251, 250, 247]],
    [0.7, [11, 98, 93]],
    [1, [31, 29, 26]]
  ],
  risingDark: [
    [0, [21, 23, 27]],
    [0.7, [118, 207, 196]],
    [1, [233, 230, 223]]
  ],
  // Red below zero, green above it, paper in the middle.
  both: [
    [0, [67, 17, 10]],
    [0.15, [161, 38, 13]],
    [0.5, [251, 250, 247]],
    [0.85, [11, 98, 93]],
    [1, [31, 29, 26]]
  ],
  bothDark: [
    [0, [255, 217, 207]],
    [0.15, [255, 157, 133]],
    [0.5, [21, 23, 27]],
    [0.85, [118, 207, 196]],
    [1, [233, 230, 223]]
  ]
};

/**
 * 256 colours between the given ones, as pixels (little-endian: red is the lowest byte).
 * @param {[number, number[]][]} stops
 */
function colourRamp(stops) {
  const colours = new Uint32Array(256);
  for (let i = 0; i < 256; i++) {
    const from = stops.findLastIndex(([place], k) => place <= i / 255 && k < stops.length - 1);
    const [[low, first], [high, last]] = [stops[from], stops[from + 1]];
    const part = (i / 255 - low) / (high - low);
    const [red, green, blue] = first.map((a, c) => Math.round(a + (last[c] - a) * part));
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

const RAMPS = Object.fromEntries(Object.entries(STOPS).map(([name, stops]) => [name, colourRamp(stops)]));

/** @param {boolean} signed whether numbers below zero have colours too */
function rampFor(signed) {
  return RAMPS[(signed ? "both" : "rising") + (isDark() ? "Dark" : "")];
}

/** Whether the page is dark now. */
export function isDark() {
  return document.documentElement.dataset.theme === "dark";
}

/** The colours outside the ramp: masked (nothing is painted, and the hatching shows), not finite, not loaded yet. */
export function specialColours() {
  return isDark()
    ? { masked: 0, odd: pixel(255, 105, 180), waiting: pixel(38, 41, 48) }
    : { masked: 0, odd: pixel(214, 0, 110), waiting: pixel(238, 235, 228) };
}

/** @type {Map<string, CanvasPattern>} */
const hatchings = new Map();

/**
 * The hatching of masked cells.
 * @param {CanvasRenderingContext2D} pen
 */
export function hatching(pen) {
  const colour = themeValue("hatch");
  let found = hatchings.get(colour);
  if (!found) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const brush = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d"));
    brush.strokeStyle = colour;
    brush.lineWidth = 1;
    for (const from of [-6, 0, 6]) {
      brush.moveTo(from, 6);
      brush.lineTo(from + 6, 0);
    }
    brush.stroke();
    found = /** @type {CanvasPattern} */ (pen.createPattern(tile, "repeat"));
    hatchings.set(colour, found);
  }
  return found;
}

/** @param {number} colour a pixel */
export function css(colour) {
  return `rgb(${colour & 255}, ${(colour >> 8) & 255}, ${(colour >> 16) & 255})`;
}

/** @type {Map<string, string>} read once, because charts ask for them at every frame */
const themeCache = new Map();

/**
 * A colour or a font of the style sheet.
 * @param {string} name
 */
export function themeValue(name) {
  let found = themeCache.get(name);
  if (found === undefined) {
    found = getComputedStyle(document.documentElement)
      .getPropertyValue("--" + name)
      .trim();
    themeCache.set(name, found);
  }
  return found;
}

/** The page has turned dark or light. */
export function clearThemeCache() {
  themeCache.clear();
}

const DECADES = 6;

/**
 * From `low` to `high`, on a straight, a square-root or a logarithmic line. A scale with numbers below zero is the same
 * to both sides of zero. It does not change: another range is another scale.
 */
export class Scale {
  /**
   * @param {Shape} shape
   * @param {number} low
   * @param {number} high
   */
  constructor(shape, low, high) {
    const reach = Math.max(Math.abs(low), Math.abs(high)) || 1;
    this.signed = low < 0;
    this.high = this.signed ? reach : high > 0 ? high : 1;
    this.low = this.signed ? -reach : 0;
    this.shape = shape;
    this.floor = this.high * 10 ** -DECADES;
    this.ramp = rampFor(this.signed);
  }

  /** @param {Scale} other */
  same(other) {
    return this.shape === other.shape && this.high === other.high && this.signed === other.signed;
  }

  /**
   * Where on the line a size lies, 0 to 1.
   * @param {number} size at least 0
   */
  along(size) {
    const part = size / this.high;
    if (this.shape === "linear") return clamp(0, part, 1);
    if (this.shape === "root") return clamp(0, Math.sqrt(part), 1);
    return part > 0 ? clamp(0, 1 + Math.log10(part) / DECADES, 1) : 0;
  }

  /** @param {number} value finite */
  colour(value) {
    if (!this.signed) return this.ramp[Math.round(255 * this.along(Math.max(0, value)))];
    const half = 127.5 * this.along(Math.abs(value));
    return this.ramp[Math.round(127.5 + (value < 0 ? -half : half))];
  }

  /**
   * Colour many values: what is not finite gets a colour of its own.
   * @param {Float32Array} values
   * @param {Uint32Array} pixels
   */
  paint(values, pixels) {
    const plain = specialColours();
    for (let i = 0; i < values.length; i++) {
      const value = values[i];
      pixels[i] = value - value !== 0 ? plain.odd : this.colour(value);
    }
  }

  /** The numbers that stand at the legend, with their places from 0 to 1. */
  ticks() {
    const up =
      this.shape === "log"
        ? [0, 2, 4, DECADES].map((decade) => this.high * 10 ** -decade).reverse()
        : this.shape === "root"
          ? [0, 1 / 16, 1 / 4, 1].map((part) => part * this.high)
          : [0, 0.25, 0.5, 0.75, 1].map((part) => part * this.high);
    if (!this.signed) return up.map((value) => ({ value, at: this.along(value) }));
    const middle = { linear: 1 / 2, root: 1 / 4, log: 10 ** (-DECADES / 2) }[this.shape] * this.high;
    const values = [-this.high, -middle, 0, middle, this.high];
    return values.map((value) => ({ value, at: 0.5 + (Math.sign(value) * this.along(Math.abs(value))) / 2 }));
  }
}

/**
 * The legend of a scale: the line of colours with numbers, and what the colours beside it mean.
 * @param {Scale} scale
 * @param {string} what of what the numbers are
 * @param {boolean | null} masked whether some cell is masked; null if the page does not know
 * @param {boolean} odd whether some number is not finite
 */
export function legend(scale, what, masked, odd) {
  const width = 260;
  const canvas = make("canvas", { "aria-hidden": "true" });
  const pen = sizeCanvas(canvas, width, 34);
  for (let x = 0; x < width - 24; x++) {
    pen.fillStyle = css(scale.ramp[Math.round((255 * x) / (width - 25))]);
    pen.fillRect(12 + x, 2, 1.5, 10);
  }
  pen.fillStyle = themeValue("soft");
  pen.font = "11px " + themeValue("sans");
  for (const { value, at } of scale.ticks()) {
    const x = 12 + at * (width - 24);
    pen.fillRect(Math.round(x), 13, 1, 4);
    pen.textAlign = at > 0.97 ? "end" : at < 0.03 ? "start" : "center";
    pen.fillText(formatTick(value), at > 0.97 ? width : at < 0.03 ? 0 : x, 29);
  }
  const plain = specialColours();
  const below = scale.shape === "log" && !scale.signed ? `${formatTick(scale.floor)} or less` : formatTick(scale.low);
  const words = `Colour scale from ${below} to ${formatTick(scale.high)}, ${SCALE_NAMES[scale.shape]}.`;
  return make(
    "figure",
    { class: "legend", "aria-label": `${what}. ${words}` },
    make("figcaption", {}, scale.signed ? `${what}. Signed: these are not probabilities` : what),
    canvas,
    masked !== false || odd
      ? make(
          "ul",
          { class: "swatches" },
          masked === null && make("li", {}, "0 may be masked: the mask is a tensor, which is not in this page"),
          masked && swatch(0, "masked"),
          odd && swatch(plain.odd, "not finite")
        )
      : null
  );
}

/** @type {Record<Shape, string>} */
export const SCALE_NAMES = {
  linear: "linear",
  root: "square root",
  log: "logarithmic"
};

/**
 * @param {number} colour
 * @param {string} name
 */
function swatch(colour, name) {
  const mark = make("span", { class: colour ? "swatch" : "swatch hatched" });
  if (colour) mark.style.backgroundColor = css(colour);
  return make("li", {}, mark, name);
}
