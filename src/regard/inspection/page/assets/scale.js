// A scale: from numbers to colours, with the legend that says how. Knows nothing of where the numbers come from.

import { clamp, tick } from "./numbers.js";
import { css, ink, plainColours, rampFor } from "./colour.js";
import { make, sharpen } from "./dom.js";

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

  /** @param {number} value finite, and not zero */
  colour(value) {
    if (!this.signed) return this.ramp[Math.round(255 * this.along(Math.max(0, value)))];
    const half = 127.5 * this.along(Math.abs(value));
    return this.ramp[Math.round(127.5 + (value < 0 ? -half : half))];
  }

  /**
   * Colour many values: a zero and what is no number get colours of their own.
   * @param {Float32Array} values
   * @param {Uint32Array} pixels
   */
  paint(values, pixels) {
    const plain = plainColours();
    for (let i = 0; i < values.length; i++) {
      const value = values[i];
      pixels[i] = value === 0 ? plain.zero : value - value !== 0 ? plain.odd : this.colour(value);
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
 * @param {boolean} known whether the page knows which cells nobody may look at
 */
export function legend(scale, what, known) {
  const width = 260;
  const canvas = make("canvas", { "aria-hidden": "true" });
  const pen = sharpen(canvas, width, 34);
  for (let x = 0; x < width - 24; x++) {
    pen.fillStyle = css(scale.ramp[Math.round((255 * x) / (width - 25))]);
    pen.fillRect(12 + x, 2, 1.5, 10);
  }
  pen.fillStyle = ink("soft");
  pen.font = "11px " + ink("sans");
  for (const { value, at } of scale.ticks()) {
    const x = 12 + at * (width - 24);
    pen.fillRect(Math.round(x), 13, 1, 4);
    pen.textAlign = at > 0.97 ? "end" : at < 0.03 ? "start" : "center";
    pen.fillText(tick(value), at > 0.97 ? width : at < 0.03 ? 0 : x, 29);
  }
  const plain = plainColours();
  const below = scale.shape === "log" && !scale.signed ? `${tick(scale.floor)} or less` : tick(scale.low);
  const words = `Colours from ${below} to ${tick(scale.high)}, ${SHAPES[scale.shape]}.`;
  return make(
    "figure",
    { class: "legend", "aria-label": `${what}. ${words}` },
    make("figcaption", {}, what),
    canvas,
    make(
      "ul",
      { class: "swatches" },
      swatch(plain.zero, known ? "0" : "0, or masked: the mask is a tensor, which is not in this page"),
      known && swatch(plain.masked, "masked"),
      swatch(plain.odd, "not finite")
    )
  );
}

/** @type {Record<Shape, string>} */
export const SHAPES = {
  linear: "on a straight line",
  root: "on a line of square roots",
  log: "on a line of powers of ten"
};

/**
 * @param {number} colour
 * @param {string} name
 */
function swatch(colour, name) {
  const mark = make("span", { class: "swatch" });
  mark.style.backgroundColor = css(colour);
  return make("li", {}, mark, name);
}
