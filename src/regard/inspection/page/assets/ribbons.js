// Two lines of words with ribbons between them: the stage of the view "Read". It lays the words out for the room there
// is, draws the links as ribbons (or as arcs inside one line), and follows the pointer, the keys and what is pinned. It
// knows words and shares, not traces.

import { fill, isolatedText, make, makeSvg } from "./dom.js";
import { clamp, formatPercent, largest } from "./numbers.js";
import { themeValue } from "./scale.js";
import { directionOf, endsSentence } from "./text.js";
import { cutLines } from "./verdict.js";

const MIN_SHARE = 0.06; // a smaller share has no ribbon
const NARROW = 600; // pixels of a stage whose words stand in two columns
export const PRINTED = 680; // pixels of a printed page
const MAX_LINE = 25; // words of a sentence that is not cut at the ends of sentences
const SIZES = [25, 22, 19, 17]; // pixels of the words: the largest that fits

/** @typedef {"source" | "target"} Line */
/** @typedef {{line: Line, at: number}} Spot */
/**
 * What is drawn: shares from the rows (target words) to the columns (source words), or inside one line.
 * @typedef {{matrix: import("./verdict.js").Matrix, colour: string, over: "links" | Line, name: string}} Layer
 */
/**
 * `below` gives what stands under a word, `marked` a class for it.
 * @typedef {{source: Unit[], target: Unit[], below: (line: Line, at: number) => Node[],
 *   marked: (line: Line, at: number) => string, room: (line: Line) => number, names: Record<Line, string>,
 *   onActive: (spot: Spot | null, pinned: boolean) => void}} StageOptions
 */

export class Stage {
  /**
   * @param {App} app
   * @param {StageOptions} options
   */
  constructor(app, options) {
    this.app = app;
    this.options = options;
    this.drawing = makeSvg("svg", { class: "ribbons", "aria-hidden": "true" });
    this.room = make("div", { class: "pairs" });
    this.element = make("div", { class: "stage" }, this.drawing, this.room);
    /** @type {Record<Line, HTMLElement[]>} */
    this.cells = { source: [], target: [] };
    /** @type {Layer[]} */
    this.layers = [];
    /** @type {Layer[] | null} shown while a head is pointed at */
    this.preview = null;
    /** @type {Spot | null} */
    this.hovered = null;
    /** @type {Spot | null} */
    this.pinned = null;
    this.width = 0;
    /** @type {Record<Line, number>} the word of each line that the Tab key reaches */
    this.stops = { source: 0, target: 0 };
    this.watcher = new ResizeObserver(() => {
      if (Math.abs(this.element.clientWidth - this.width) > 1) this.layout();
    });
    this.watcher.observe(this.element);
    app.onClose(() => this.watcher.disconnect());
    this.attach();
  }

  get narrow() {
    return this.width < NARROW;
  }

  /** Put the words into lines, for the width there is. */
  layout() {
    this.width = this.element.clientWidth;
    if (!this.width) return;
    const { size, pairs } = this.plan();
    this.element.classList.toggle("narrow", this.narrow);
    this.element.classList.toggle("several", pairs.length > 1);
    this.element.style.setProperty("--word-size", `${size}px`);
    // A printed page keeps the lines of the screen, and makes them fit.
    this.element.style.setProperty("--stage-width", `${this.width}px`);
    this.element.style.setProperty("--printed", String(Math.min(1, PRINTED / this.width)));
    this.cells = { source: [], target: [] };
    fill(
      this.room,
      ...pairs.map((pair, i) => {
        const part = pairs.length > 1 ? `, part ${i + 1} of ${pairs.length}` : "";
        const [above, below] = [this.line("source", pair.source, part), this.line("target", pair.target, part)];
        const empty = pair.source[0] === pair.source[1] || pair.target[0] === pair.target[1];
        return make("div", { class: empty ? "pair alone" : "pair" }, above, below);
      })
    );
    this.draw();
  }

  /** The size of the words, and the lines that they stand in. */
  plan() {
    const { source, target, room } = this.options;
    /** @type {{source: [number, number], target: [number, number]}} */
    const whole = { source: [0, source.length], target: [0, target.length] };
    const long = source.length > MAX_LINE || target.length > MAX_LINE;
    const [sourceEnds, targetEnds] = [source, target].map((units) => units.map((unit) => endsSentence(unit.name)));
    const ends = { source: sourceEnds, target: targetEnds };
    const links = this.layers.find(({ over }) => over === "links")?.matrix ?? null;
    if (this.narrow) {
      const even = { source: source.map(() => 1), target: target.map(() => 1) };
      return { size: 19, pairs: long ? cutLines(even, ends, links, MAX_LINE) : [whole] };
    }
    const pen = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
    /** @param {Unit[]} units @param {number} size @param {number} least */
    const widths = (units, size, least) => {
      pen.font = `${size}px ${themeValue("serif")}`;
      return units.map((unit) => Math.max(least, pen.measureText(unit.name).width + 10) + 9);
    };
    for (const size of long ? [] : SIZES) {
      const wide = [widths(source, size, room("source")), widths(target, size, room("target"))].map((one) =>
        one.reduce((sum, part) => sum + part, 0)
      );
      if (Math.max(...wide) <= this.width) return { size, pairs: [whole] };
    }
    const size = SIZES[SIZES.length - 1];
    const own = { source: widths(source, size, room("source")), target: widths(target, size, room("target")) };
    return { size, pairs: cutLines(own, ends, links, this.width) };
  }

  /**
   * @param {Line} line
   * @param {[number, number]} range
   * @param {string} part which part of the text it is
   */
  line(line, [from, to], part) {
    const { below, marked, names } = this.options;
    const units = this.options[line];
    const cells = units.slice(from, to).map((unit, k) => {
      const at = from + k;
      const word = make(
        "button",
        {
          type: "button",
          class: `w ${marked(line, at)}`,
          tabindex: at === this.stops[line] ? "0" : "-1",
          "aria-pressed": "false",
          "data-line": line,
          "data-at": at
        },
        isolatedText(unit.name)
      );
      const cell = make("div", { class: "cell" }, word, ...below(line, at));
      this.cells[line][at] = cell;
      return cell;
    });
    const text = units.map((unit) => unit.name).join(" ");
    return make(
      "div",
      { class: `line ${line}`, role: "group", "aria-label": names[line] + part, dir: directionOf(text) },
      ...cells
    );
  }

  /** Where ribbons touch a word, in pixels of the stage. @param {Line} line @param {number} at */
  anchor(line, at) {
    const [box, cell] = [this.element.getBoundingClientRect(), this.cells[line][at].getBoundingClientRect()];
    if (this.narrow)
      return {
        x: (line === "source" ? cell.right + 3 : cell.left - 3) - box.left,
        y: cell.top + cell.height / 2 - box.top
      };
    return {
      x: cell.left + cell.width / 2 - box.left,
      y: (line === "source" ? cell.bottom + 3 : cell.top - 2) - box.top
    };
  }

  /** @param {Line} line @param {number} at */
  pairOf(line, at) {
    return this.cells[line][at].parentElement?.parentElement;
  }

  /** @param {Layer[]} layers */
  show(layers) {
    this.layers = layers;
    if (this.cells.target.length) this.draw();
  }

  /** @param {Layer[] | null} layers what a head that is pointed at would show */
  peek(layers) {
    this.preview = layers;
    this.draw();
  }

  /** Draw all ribbons of the layers, and then what the active word changes. */
  draw() {
    const { drawing } = this;
    if (!this.element.isConnected || !this.width) return;
    drawing.replaceChildren();
    const height = this.element.clientHeight;
    drawing.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    const layers = this.preview ?? this.layers;
    const anchors = {
      source: this.cells.source.map((_, j) => this.anchor("source", j)),
      target: this.cells.target.map((_, i) => this.anchor("target", i))
    };
    for (const layer of layers) {
      const { rows, columns, values } = layer.matrix;
      const [rowLine, columnLine] = endsOf(layer);
      for (let i = 0; i < rows; i++)
        for (let j = 0; j < columns; j++) {
          const share = values[i * columns + j];
          if (!(share >= MIN_SHARE) || (layer.over !== "links" && i === j)) continue;
          const [from, to] = [anchors[rowLine][i], anchors[columnLine][j]];
          if (!from || !to) continue;
          const shape =
            layer.over === "links"
              ? {
                  d: ribbon(to, from, Math.min(1, share) * (this.narrow ? 15 : 22), this.narrow),
                  fill: `var(--${layer.colour})`
                }
              : {
                  d: arc(from, to, layer.over, this.narrow),
                  fill: "none",
                  stroke: `var(--${layer.colour})`,
                  "stroke-width": Math.max(1, Math.min(1, share) * 14)
                };
          const path = makeSvg("path", { "data-row": i, "data-column": j });
          for (const [name, value] of Object.entries(shape))
            if (name === "d") path.setAttribute(name, String(value));
            else /** @type {any} */ (path).style.setProperty(name, String(value));
          path.classList.add(layer.over === "links" ? "ribbon" : "arc");
          drawing.append(path);
          const apart = this.pairOf(rowLine, i) !== this.pairOf(columnLine, j);
          shapesOf.set(path, { layer, i, j, share, from, to, apart });
        }
    }
    this.mark();
  }

  /** @returns {Spot | null} the word that the page tells of */
  get active() {
    return this.hovered ?? this.pinned;
  }

  /** Fade the ribbons of other words, shade the far words, and write their shares at the far ends. */
  mark() {
    const { active, drawing } = this;
    const layers = this.preview ?? this.layers;
    for (const label of drawing.querySelectorAll("text")) label.remove();
    for (const line of /** @type {Line[]} */ (["source", "target"]))
      this.cells[line].forEach((cell, at) => {
        const word = /** @type {HTMLElement} */ (cell.firstElementChild);
        word.classList.toggle("on", active?.line === line && active.at === at);
        word.setAttribute("aria-pressed", String(this.pinned?.line === line && this.pinned.at === at));
        word.classList.remove("far", "most");
        word.style.removeProperty("--share");
      });
    const usual = layers.length > 1 ? 0.42 : 0.55;
    /** @type {Map<string, number>} the largest share of each far word */
    const far = new Map();
    for (const path of drawing.querySelectorAll("path")) {
      const shape = shapesOf.get(path);
      if (!shape) continue;
      const [rowLine, columnLine] = endsOf(shape.layer);
      const byRow = active?.line === rowLine && active.at === shape.i;
      const byColumn = active?.line === columnLine && active.at === shape.j && rowLine !== columnLine;
      // A ribbon to another pair of lines runs behind words, and is faint until it is asked for.
      path.style.opacity = String(!active ? (shape.apart ? 0.1 : usual) : byRow || byColumn ? 0.85 : 0.07);
      if (!byRow && !byColumn) continue;
      const [line, at, end] = byRow ? [columnLine, shape.j, shape.to] : [rowLine, shape.i, shape.from];
      const before = far.get(`${line} ${at}`);
      far.set(`${line} ${at}`, Math.max(before ?? 0, shape.share));
      if (before === undefined || layers.length === 1) this.label(line, end, shape.share);
    }
    const most = Math.max(0, ...far.values());
    for (const [key, share] of far) {
      const [line, at] = key.split(" ");
      const word = /** @type {HTMLElement} */ (this.cells[/** @type {Line} */ (line)][Number(at)].firstElementChild);
      word.classList.add("far");
      word.classList.toggle("most", share === most);
      word.style.setProperty("--share", String(clamp(0, share, 1)));
    }
  }

  /** @param {Line} line @param {{x: number, y: number}} end @param {number} share */
  label(line, { x, y }, share) {
    const source = line === "source";
    const text = makeSvg("text", {
      x: this.narrow ? x + (source ? 6 : -6) : x,
      y: this.narrow ? y + 4 : y + (source ? 15 : -8),
      "text-anchor": this.narrow ? (source ? "start" : "end") : "middle"
    });
    text.textContent = formatPercent(share);
    this.drawing.append(text);
  }

  /** The words that a word is linked with, the largest share first, for each layer. @param {Spot} spot */
  linked({ line, at }) {
    return (this.preview ?? this.layers).map((layer) => {
      const { rows, columns, values } = layer.matrix;
      const [rowLine, columnLine] = endsOf(layer);
      const own =
        rowLine === line
          ? values.subarray(at * columns, (at + 1) * columns)
          : columnLine === line
            ? Float32Array.from({ length: rows }, (_, i) => values[i * columns + at])
            : new Float32Array();
      const other = rowLine === line ? columnLine : rowLine;
      const words = largest(own, 4).filter((k) => own[k] >= 0.01);
      return { layer, line: other, words: words.map((k) => ({ at: k, share: own[k] })) };
    });
  }

  /** @param {Spot | null} spot */
  pin(spot) {
    const same = spot && this.pinned?.line === spot.line && this.pinned.at === spot.at;
    this.pinned = same ? null : spot;
    this.hovered = null;
    this.mark();
    this.options.onActive(this.active, Boolean(this.pinned));
  }

  /** @param {Spot | null} spot */
  hover(spot) {
    if (spot?.line === this.hovered?.line && spot?.at === this.hovered?.at) return;
    this.hovered = spot;
    this.mark();
    this.options.onActive(this.active, Boolean(this.pinned));
  }

  /** Move the focus to a word, and tell of it. @param {Spot} spot */
  focus(spot) {
    const cells = this.cells[spot.line];
    const word = (/** @type {number} */ at) => /** @type {HTMLElement} */ (cells[at]?.firstElementChild);
    if (!word(spot.at)) return;
    word(this.stops[spot.line])?.setAttribute("tabindex", "-1");
    this.stops[spot.line] = spot.at;
    word(spot.at).setAttribute("tabindex", "0");
    word(spot.at).focus();
  }

  /** Listen to the pointer and to keys. */
  attach() {
    const { room } = this;
    /** @param {EventTarget | null} target @returns {Spot | null} */
    const spotOf = (target) => {
      const cell = target instanceof Element ? target.closest(".cell") : null;
      const word = /** @type {HTMLElement | null} */ (cell?.querySelector(".w") ?? null);
      return word ? { line: /** @type {Line} */ (word.dataset.line), at: Number(word.dataset.at) } : null;
    };
    room.addEventListener("pointerover", (event) => {
      if (event.pointerType !== "touch") this.hover(spotOf(event.target));
    });
    room.addEventListener("pointerleave", () => this.hover(null));
    room.addEventListener("focusin", (event) => {
      const spot = spotOf(event.target);
      if (!spot || !(event.target instanceof Element) || !event.target.matches(".w:focus-visible")) return;
      this.stops[spot.line] = spot.at;
      this.hover(spot);
      this.app.announce(this.spoken(spot));
    });
    room.addEventListener("focusout", () => this.hover(null));
    room.addEventListener("click", (event) => {
      const word = event.target instanceof Element ? event.target.closest(".w") : null;
      if (word) this.pin(spotOf(word));
    });
    this.element.addEventListener("keydown", (event) => this.key(event, spotOf(event.target)));
  }

  /** @param {KeyboardEvent} event @param {Spot | null} spot */
  key(event, spot) {
    if (event.key === "Escape" && (this.pinned || this.hovered)) {
      this.pin(null);
      event.preventDefault();
      return;
    }
    if (!spot || event.altKey || event.ctrlKey || event.metaKey) return;
    const backwards = this.cells[spot.line][spot.at].parentElement?.dir === "rtl" && !this.narrow;
    const [next, previous] = this.narrow
      ? ["ArrowDown", "ArrowUp"]
      : backwards
        ? ["ArrowLeft", "ArrowRight"]
        : ["ArrowRight", "ArrowLeft"];
    const last = this.cells[spot.line].length - 1;
    /** @type {Record<string, number | undefined>} */
    const steps = { [next]: Math.min(last, spot.at + 1), [previous]: Math.max(0, spot.at - 1), Home: 0, End: last };
    const to = steps[event.key];
    if (to !== undefined) this.focus({ line: spot.line, at: to });
    else if (/^Arrow/.test(event.key)) {
      // The other two arrows go to the word at the far end of the widest ribbon.
      const found = this.linked(spot)[0];
      if (found?.words.length) this.focus({ line: found.line, at: found.words[0].at });
    } else return;
    event.preventDefault();
  }

  /** What a screen reader says of a word. @param {Spot} spot */
  spoken(spot) {
    const parts = this.linked(spot).map(({ layer, line, words }) => {
      const told = words.slice(0, 3).map(({ at, share }) => `${this.options[line][at].name} ${formatPercent(share)}`);
      return `${layer.name}: ${told.join(", ") || "nothing"}`;
    });
    return `${this.options[spot.line][spot.at].name}. ${parts.join(". ")}`;
  }
}

/** @type {WeakMap<Element, {layer: Layer, i: number, j: number, share: number, from: {x: number, y: number},
 *   to: {x: number, y: number}, apart: boolean}>} */
const shapesOf = new WeakMap();

/** The lines of the rows and of the columns of a layer. @param {Layer} layer @returns {[Line, Line]} */
function endsOf({ over }) {
  return over === "links" ? ["target", "source"] : [over, over];
}

/**
 * A ribbon between two points, as wide at both ends.
 * @param {{x: number, y: number}} a
 * @param {{x: number, y: number}} b
 * @param {number} width
 * @param {boolean} narrow whether it runs across
 */
function ribbon(a, b, width, narrow) {
  const half = width / 2;
  /** @param {number} x @param {number} y */
  const p = (x, y) => `${x.toFixed(1)} ${y.toFixed(1)}`;
  if (narrow) {
    const mid = (a.x + b.x) / 2;
    return (
      `M${p(a.x, a.y - half)}C${p(mid, a.y - half)} ${p(mid, b.y - half)} ${p(b.x, b.y - half)}` +
      `L${p(b.x, b.y + half)}C${p(mid, b.y + half)} ${p(mid, a.y + half)} ${p(a.x, a.y + half)}Z`
    );
  }
  const mid = (a.y + b.y) / 2;
  return (
    `M${p(a.x - half, a.y)}C${p(a.x - half, mid)} ${p(b.x - half, mid)} ${p(b.x - half, b.y)}` +
    `L${p(b.x + half, b.y)}C${p(b.x + half, mid)} ${p(a.x + half, mid)} ${p(a.x + half, a.y)}Z`
  );
}

/**
 * An arc inside one line, bowed towards the other line.
 * @param {{x: number, y: number}} a
 * @param {{x: number, y: number}} b
 * @param {Line} line
 * @param {boolean} narrow
 */
function arc(a, b, line, narrow) {
  const sign = line === "source" ? 1 : -1;
  const bow = sign * Math.min(narrow ? 70 : 150, 16 + 0.4 * Math.hypot(a.x - b.x, a.y - b.y));
  const [c, d] = narrow
    ? [`${a.x + bow} ${a.y}`, `${b.x + bow} ${b.y}`]
    : [`${a.x} ${a.y + bow}`, `${b.x} ${b.y + bow}`];
  return `M${a.x} ${a.y}C${c} ${d} ${b.x} ${b.y}`;
}
