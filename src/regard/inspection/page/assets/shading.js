// Texts as paragraphs whose words are shaded: what the word that is pointed at looked at. For one text (a language
// model, a classifier, labels), and for two texts that are too long for ribbons. Rows of large maps are fetched one at a
// time.

import { defaultAttention, selectedAttention, selectionControls } from "./alignment.js";
import { mutedText, notice, textButton } from "./controls.js";
import { fill, isolatedText, make, pickNumber } from "./dom.js";
import { clamp, formatFixed, formatPercent, largest } from "./numbers.js";
import { attentionTitle, groupTokens, isSmall } from "./planes.js";
import { directionOf, hasWords, isSeparator, textOf, tokenUnits, visibleText, wordUnits } from "./text.js";
import { wordProbabilities } from "./verdict.js";
import { attentionSize } from "./weights.js";

const MAX_SHADED = 4000; // words of a text that is shown as words
const LABEL_COLOURS = 6;

/** @typedef {{side: string, units: Unit[], words: HTMLElement[]}} Paragraph */

/** All units of a side that people read. @param {Side} side */
function unitsOf(side) {
  return hasWords(side) ? wordUnits(side).filter((unit) => unit.word !== null || !isSeparator(unit.name)) : tokenUnits(side);
}

/**
 * @param {App} app
 * @param {number} number
 * @param {{source: string, target: string} | null} pair the sides, if an output looks at an input
 * @param {HTMLElement} room
 */
export function textReading(app, number, pair, room) {
  const trace = app.traces[number];
  const chosen = selectedAttention(trace, app.state);
  const one = trace.attentions[chosen.attention];
  const names = { rows: one.queries, columns: one.keys };
  const longest = Math.max(...[names.rows, names.columns].map((name) => trace.sides[name].tokens.length));
  if (longest > 3 * MAX_SHADED || one.data.kind === "overview") {
    fill(
      room,
      notice(
        `This text has ${longest.toLocaleString("en")} tokens, too many to read here. `,
        textButton("Open the map", () => app.navigate({ view: "map" }))
      )
    );
    return;
  }
  const detail = make("div", { class: "detail" });
  const columns = paragraph(trace, names.columns);
  const rows = sameUnits(trace, names.rows, names.columns) ? columns : paragraph(trace, names.rows);
  const labels = rows !== columns && isLabelled(trace, names) ? labelTrack(trace, names, columns) : null;
  const shown = labels ? columns : rows;
  const surprise = surprisal(trace, shown);
  fill(
    room,
    mutedText(
      `Point at a word to shade what it looked at, by ${attentionTitle(trace, one)}` +
        `${chosen.head < 0 ? ", mean of all heads" : `, head ${chosen.head}`}. Click it to keep the shading.`
    ),
    selectionControls(app, number, chosen, ""),
    surprise,
    shown === columns ? null : block(columns, textOf(trace.sides[names.columns]), names.columns),
    block(shown, textOf(trace.sides[names.rows]), names.rows),
    detail,
    labels
  );
  follow(app, number, chosen, { rows: shown, columns }, detail);
}

/**
 * @param {Trace} trace
 * @param {string} side
 * @returns {Paragraph}
 */
function paragraph(trace, side) {
  const units = unitsOf(trace.sides[side]).slice(0, MAX_SHADED);
  const words = units.map((unit, at) =>
    make(
      "button",
      { type: "button", class: "w", tabindex: at ? "-1" : "0", "aria-pressed": "false", "data-at": at },
      isolatedText(unit.name)
    )
  );
  return { side, units, words };
}

/** @param {Paragraph} text @param {string} whole @param {string} name */
function block(text, whole, name) {
  return make(
    "div",
    { class: "shaded", role: "group", "aria-label": name, dir: directionOf(whole) },
    ...text.words.flatMap((word) => [word.parentElement ?? word, " "])
  );
}

/**
 * Whether two sides have the same units, so that one paragraph stands for both.
 * @param {Trace} trace
 * @param {string} first
 * @param {string} second
 */
function sameUnits(trace, first, second) {
  return first === second || trace.sides[first].tokens.join("\n") === trace.sides[second].tokens.join("\n");
}

/**
 * Whether the rows are the columns with labels, such as cat/NOUN.
 * @param {Trace} trace
 * @param {{rows: string, columns: string}} names
 */
function isLabelled(trace, { rows, columns }) {
  const [labelled, plain] = [trace.sides[rows], trace.sides[columns]];
  return (
    rows === "labels" && labelled.words?.length === plain.words?.length && labelled.tokens.length === plain.tokens.length
  );
}

/**
 * Write the label of each word under it, in a colour of its own, and return the key of the colours.
 * @param {Trace} trace
 * @param {{rows: string, columns: string}} names
 * @param {Paragraph} text
 */
function labelTrack(trace, names, text) {
  const marked = unitsOf(trace.sides[names.rows]);
  /** @type {Map<string, number>} */
  const kinds = new Map();
  text.units.forEach((unit, at) => {
    const label = (marked[at]?.name ?? "").slice(unit.name.length + 1);
    const kind = label.replace(/^[BI]-/, "");
    if (!kinds.has(kind)) kinds.set(kind, kinds.size);
    const place = label === "O" ? "none" : String((kinds.get(kind) ?? 0) % LABEL_COLOURS);
    make(
      "span",
      { class: "labelled" },
      text.words[at],
      make("small", { class: "label", "data-kind": place }, visibleText(label))
    );
  });
  const shown = [...kinds].filter(([kind]) => kind !== "O");
  return make(
    "ul",
    { class: "label-key", "aria-label": "Labels" },
    ...shown.map(([kind, at]) => make("li", {}, make("small", { class: "label", "data-kind": String(at % LABEL_COLOURS) }, visibleText(kind))))
  );
}

/**
 * The probability of every word, under it, where the trace has them: how surprising each was.
 * @param {Trace} trace
 * @param {Paragraph} text
 */
function surprisal(trace, text) {
  const written = trace.written;
  if (!written || written.side !== text.side) return null;
  const sure = wordProbabilities(written, text.units);
  let nats = 0;
  sure.forEach((probability, at) => {
    if (!(probability > 0)) return;
    nats -= Math.log(probability);
    const word = text.words[at];
    word.classList.add("surprising");
    word.style.setProperty("--surprise", String(clamp(0, -Math.log(probability) / 8, 1)));
    word.title = `probability ${formatPercent(probability)}, surprisal ${formatFixed(-Math.log(probability), 2)} nats`;
  });
  return mutedText(
    `The line under a word shows its surprisal, −log p: ${formatFixed(nats / Math.max(1, sure.length), 2)} nats a word ` +
      "on average."
  );
}

/**
 * Shade the words that the active word looked at; the strongest are named below.
 * @param {App} app
 * @param {number} number
 * @param {{attention: number, head: number, offset: number}} chosen
 * @param {{rows: Paragraph, columns: Paragraph}} texts
 * @param {HTMLElement} detail
 */
function follow(app, number, chosen, { rows, columns }, detail) {
  const trace = app.traces[number];
  const one = trace.attentions[chosen.attention];
  const sizes = attentionSize(trace, one);
  /** @type {Map<number, Promise<Float32Array>>} */
  const known = new Map();
  /** @param {number} at the weights of a word, on the words of the columns */
  const weightsOf = (at) => {
    let found = known.get(at);
    if (!found) {
      found = rowWeights(app, number, chosen, rows.units[at], columns.units, sizes);
      known.set(at, found);
    }
    return found;
  };
  /** @type {number | null} */
  let pinned = null;
  let asked = 0;
  /** @param {number | null} at */
  const show = async (at) => {
    const request = ++asked;
    rows.words.forEach((word, i) => {
      word.classList.toggle("on", i === at);
      word.setAttribute("aria-pressed", String(i === pinned));
    });
    const weights = at === null ? null : await weightsOf(at).catch(() => null);
    if (request !== asked) return;
    const strongest = weights ? largest(weights, 5).filter((j) => weights[j] >= 0.01) : [];
    const high = weights && strongest.length ? weights[strongest[0]] : 1;
    columns.words.forEach((word, j) => {
      const share = weights ? clamp(0, weights[j] / high, 1) : 0;
      word.classList.toggle("far", share >= 0.03);
      word.classList.toggle("most", j === strongest[0]);
      if (share >= 0.03) word.style.setProperty("--share", share.toFixed(3));
      else word.style.removeProperty("--share");
    });
    if (at === null || !weights) return fill(detail);
    const told = strongest.flatMap((j, k) => [k ? ", " : "", isolatedText(columns.units[j].name), ` ${formatPercent(weights[j])}`]);
    fill(detail, make("strong", {}, isolatedText(rows.units[at].name)), " looked at ", ...told, ".");
  };
  const area = rows.words[0]?.closest(".shaded");
  if (!area) return;
  /** @param {EventTarget | null} target */
  const place = (target) => {
    const word = target instanceof Element ? /** @type {HTMLElement | null} */ (target.closest(".w")) : null;
    return word && area.contains(word) ? Number(word.dataset.at) : null;
  };
  area.addEventListener("pointerover", (event) => {
    const at = place(event.target);
    if (at !== null) void show(at);
  });
  area.addEventListener("pointerleave", () => void show(pinned));
  area.addEventListener("focusin", (event) => void show(place(event.target)));
  area.addEventListener("click", (event) => {
    const at = place(event.target);
    pinned = at === pinned ? null : at;
    app.updateState({ word: pinned === null ? "" : `t${pinned}` });
    void show(pinned);
  });
  area.addEventListener("keydown", (event) => {
    const [key, at] = [/** @type {KeyboardEvent} */ (event).key, place(event.target)];
    if (key === "Escape") {
      pinned = null;
      void show(null);
      return;
    }
    if (at === null) return;
    const forward = /** @type {HTMLElement} */ (area).dir === "rtl" ? "ArrowLeft" : "ArrowRight";
    const last = rows.words.length - 1;
    /** @type {Record<string, number | undefined>} */
    const steps = { ArrowLeft: at - 1, ArrowRight: at - 1, Home: 0, End: last, [forward]: at + 1 };
    const to = steps[key];
    if (to === undefined || to < 0 || to > last) return;
    rows.words[at].tabIndex = -1;
    rows.words[to].tabIndex = 0;
    rows.words[to].focus();
    event.preventDefault();
    void weightsOf(to).then((weights) => {
      const told = largest(weights, 3).map((j) => `${columns.units[j].name} ${formatPercent(weights[j])}`);
      app.announce(`${rows.units[to].name}: ${told.join(", ")}`);
    });
  });
  const first = /^[st](\d{1,6})$/.exec(app.state.word ?? "");
  pinned = first ? pickNumber(first[1], rows.units.length, -1) : -1;
  if (pinned < 0) pinned = null;
  void show(pinned);
}

/**
 * The weights of one word, from a whole matrix or from its rows alone.
 * @param {App} app
 * @param {number} number
 * @param {{attention: number, head: number, offset: number}} chosen
 * @param {Unit} unit
 * @param {Unit[]} columns
 * @param {{rows: number, columns: number}} sizes
 */
async function rowWeights(app, number, chosen, unit, columns, sizes) {
  const one = app.traces[number].attentions[chosen.attention];
  const top = clamp(0, unit.first + chosen.offset, sizes.rows - 1);
  const rows = clamp(1, unit.last - unit.first + 1, sizes.rows - top);
  const heads = chosen.head < 0 ? [...Array(one.heads).keys()] : [chosen.head];
  const sum = new Float32Array(rows * sizes.columns);
  for (const head of heads) {
    const part = await app.source.map(number, chosen.attention, head, { top, left: 0, rows, columns: sizes.columns }, 1);
    for (let i = 0; i < sum.length; i++) sum[i] += part.values[i] / heads.length;
  }
  return groupTokens(sum, sizes.columns, [{ ...unit, first: 0, last: rows - 1 }], columns);
}

/**
 * Whether a trace can be read at all: its text, or its picture.
 * @param {Trace} trace
 */
export function isReadable(trace) {
  return isSmall(trace, trace.attentions[defaultAttention(trace)]);
}
