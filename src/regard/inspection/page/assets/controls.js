// Controls that several views use: choices, a sentence of words to press, lists of weights, a table, thumbnails.

import { fill, uniqueId, isolatedText, make, pickNumber } from "./dom.js";
import { formatCount, extent, largest, formatWeight } from "./numbers.js";
import { attentionTitle, describeCell } from "./planes.js";
import { Scale, SCALE_NAMES } from "./scale.js";
import { paintBlocks } from "./tiles.js";
import { attentionSize } from "./weights.js";

/**
 * A labelled choice.
 * @param {string} label
 * @param {[string, string, string?][]} options value, text, and what a tooltip says
 * @param {string} value
 * @param {(value: string) => void} chosen
 */
export function choice(label, options, value, chosen) {
  const id = uniqueId("choice");
  const select = make(
    "select",
    { id, change: () => chosen(select.value) },
    ...options.map(([one, text, title]) => make("option", { value: one, selected: one === value, title }, text))
  );
  return make("div", { class: "choice" }, make("label", { for: id }, label), select);
}

/**
 * @param {Trace} trace
 * @param {number} number
 */
export function traceName(trace, number) {
  return `${number + 1}: ${[trace.model, trace.title].filter(Boolean).join(" · ") || "trace"}`.slice(0, 80);
}

/** @param {App} app */
export function traceNumber(app) {
  return pickNumber(app.state.trace, app.traces.length, 0);
}

/**
 * The attentions of a trace, those of one name together.
 * @param {App} app
 * @param {number} trace
 * @param {string} value
 * @param {(value: string) => void} chosen
 * @param {[string, string][]} [before] other options, first
 */
export function attentionChoice(app, trace, value, chosen, before = []) {
  const names = app.traces[trace].attentions.map(
    (one, i) => /** @type {[string, string, string]} */ ([String(i), attentionTitle(app.traces[trace], one), one.name])
  );
  return choice("Attention", [...before, ...names], value, chosen);
}

/**
 * @param {Attention} attention
 * @param {string} value
 * @param {(value: string) => void} chosen
 * @param {[string, string][]} [before]
 */
export function headChoice(attention, value, chosen, before = []) {
  const heads = Array.from(
    { length: attention.heads },
    (_, h) => /** @type {[string, string]} */ ([String(h), `head ${h}`])
  );
  return choice("Head", [...before, ...heads], value, chosen);
}

/** @type {[string, string][]} */
const SCALES = [
  ["linear", "linear (auto)"],
  ["one", "linear, up to 1"],
  ["root", "square root"],
  ["log", "logarithmic"]
];

/**
 * The choice of a scale, and what is chosen.
 * @param {App} app
 * @param {string} usual
 * @returns {{shape: Shape, whole: boolean, element: HTMLElement}}
 */
export function scaleChoice(app, usual) {
  const value = SCALES.some(([one]) => one === app.state.scale) ? app.state.scale : usual;
  const shape = /** @type {Shape} */ (value in SCALE_NAMES ? value : "linear");
  return { shape, whole: value === "one", element: choice("Scale", SCALES, value, (scale) => app.navigate({ scale })) };
}

/** @type {[string, string][]} */
export const TWO_MODES = [
  ["mattered", "what mattered"],
  ["looked", "where it looked"]
];

/**
 * A few choices beside each other.
 * @param {string} label
 * @param {[string, string][]} options
 * @param {string} value
 * @param {(value: string) => void} chosen
 */
export function toggle(label, options, value, chosen) {
  const name = uniqueId("toggle");
  return make(
    "fieldset",
    { class: "toggle" },
    make("legend", {}, label),
    make(
      "div",
      {},
      ...options.map(([one, text]) =>
        make(
          "label",
          {},
          make("input", { type: "radio", name, value: one, checked: one === value, change: () => chosen(one) }),
          make("span", {}, text)
        )
      )
    )
  );
}

/**
 * The largest of some weights, as a list with bars.
 * @param {Node[]} title
 * @param {ArrayLike<number>} values
 * @param {(i: number) => string} name
 */
export function weightList(title, values, name) {
  // What is below 1 % of the sum is noise; the largest is shown in any case.
  let total = 0;
  for (let i = 0; i < values.length; i++) total += Math.abs(values[i]) || 0;
  const order = largest(values, 6).filter((i, k) => k === 0 || Math.abs(values[i]) >= 0.01 * total);
  const most = Math.abs(values[order[0]]) || 1;
  return make(
    "section",
    { class: "weights" },
    make("h2", {}, ...title),
    make(
      "ol",
      {},
      ...order.map((i) => {
        const bar = make("span", { class: values[i] < 0 ? "bar below" : "bar" });
        bar.style.width = `${(Math.abs(values[i]) / most) * 100}%`;
        return make(
          "li",
          {},
          isolatedText(name(i)),
          make("span", { class: "track" }, bar),
          make("span", { class: "number" }, formatWeight(values[i]))
        );
      })
    )
  );
}

const MAX_TABLE = 2500; // cells

/**
 * The numbers of a small plane as a table, for those who do not see the map, and to copy.
 * @param {Plane} plane
 */
export function weightTable(plane) {
  if (plane.rows * plane.columns > MAX_TABLE) return null;
  const room = make("div", {
    class: "table-room",
    tabindex: "0",
    role: "region",
    "aria-label": `Table of ${plane.name}`
  });
  let filled = false;
  const details = make(
    "details",
    {
      class: "table",
      toggle: async () => {
        if (!details.open || filled) return;
        filled = true;
        const { values } = await plane.map({ top: 0, left: 0, rows: plane.rows, columns: plane.columns }, 1);
        const head = make("tr", {}, make("td"));
        for (let j = 0; j < plane.columns; j++)
          head.append(make("th", { scope: "col" }, isolatedText(plane.columnName(j))));
        const table = make("table", {}, make("caption", {}, plane.name), make("thead", {}, head));
        const body = make("tbody");
        for (let i = 0; i < plane.rows; i++) {
          const row = make("tr", {}, make("th", { scope: "row" }, isolatedText(plane.rowName(i))));
          for (let j = 0; j < plane.columns; j++)
            row.append(make("td", {}, describeCell(plane, i, j, values[i * plane.columns + j])));
          body.append(row);
        }
        table.append(body);
        fill(room, table);
      }
    },
    make("summary", {}, "Weights as a table"),
    room
  );
  return details;
}

/**
 * A small picture of a whole plane: the means of as many blocks as it has pixels.
 * @param {Plane} plane
 * @param {number} edge pixels
 * @param {Shape} shape of its scale
 * @returns {Promise<{canvas: HTMLCanvasElement, high: number, size: number}>} with the largest number, signs apart
 */
export async function thumbnail(plane, edge, shape) {
  const longest = Math.max(plane.rows, plane.columns);
  const size = plane.levels.find((one) => longest / one <= edge) ?? plane.levels[plane.levels.length - 1];
  const block = await plane.map({ top: 0, left: 0, rows: plane.rows, columns: plane.columns }, size);
  const { low, high } = extent(block.values);
  const canvas = make("canvas", { class: "thumbnail", "aria-hidden": "true" });
  if (plane.rows > plane.columns) canvas.style.width = `${Math.max(12, (100 * plane.columns) / plane.rows)}%`;
  paintBlocks(canvas, block, new Scale(shape, low, high), plane, { top: 0, left: 0, down: size, across: size });
  return { canvas, high: Math.max(high, -low), size };
}

/**
 * What went wrong, in the place of what was to be shown.
 * @param {Error} error
 */
export function failure(error) {
  return make("p", { class: "wrong", role: "alert" }, error.message);
}

/**
 * Whether the view has been closed since, for what comes later.
 * @param {App} app
 */
export function closing(app) {
  const state = { closed: false };
  app.onClose(() => {
    state.closed = true;
  });
  return state;
}

/**
 * A quiet line.
 * @param {...(Node | string | null)} text
 */
export function mutedText(...text) {
  return make("p", { class: "quiet" }, ...text);
}

/**
 * A note to the reader, with something to press.
 * @param {string} text
 * @param {...(Node | string | null)} rest
 */
export function notice(text, ...rest) {
  return make("p", { class: "remark" }, text, ...rest);
}

/**
 * @param {string} text
 * @param {() => void} work
 */
export function textButton(text, work) {
  return make("button", { type: "button", class: "plain", click: work }, text);
}

/**
 * "12 × 14" of an attention.
 * @param {Trace} trace
 * @param {Attention} attention
 */
export function sizeText(trace, attention) {
  const { rows, columns } = attentionSize(trace, attention);
  return `${formatCount(rows)} × ${formatCount(columns)}`;
}
