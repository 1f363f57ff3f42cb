// Texts as paragraphs whose words are shaded: what the word that is pointed at looked at. For one text (a language
// model, a classifier, labels), and for two texts that are too long for ribbons. Rows of large maps are fetched one by
// one.

import { selectedAttention, selectionControls } from "./alignment.js";
import { mutedText, notice, textButton, toggle } from "./controls.js";
import { fill, isolatedText, make, pickNumber } from "./dom.js";
import { clamp, formatCount, formatFixed, formatPercent, largest } from "./numbers.js";
import { TWO_MODES } from "./picture.js";
import { attentionTitle, groupTokens } from "./planes.js";
import { directionOf, readableUnits, textOf, visibleText } from "./text.js";
import { columnSums, readInfluence, wordProbabilities } from "./verdict.js";
import { attentionSize } from "./weights.js";

const MAX_SHADED = 4000; // words of a text that is shown as words
const LABEL_COLOURS = 6;
const MIN_NATS = 0.3; // of the darkest shade

/** @typedef {{side: string, units: Unit[], words: HTMLElement[]}} Paragraph */

/**
 * @param {App} app
 * @param {number} number
 * @param {HTMLElement} room
 */
export function textReading(app, number, room) {
  const trace = app.traces[number];
  const chosen = selectedAttention(trace, app.state);
  const one = trace.attentions[chosen.attention];
  const names = { rows: one.queries, columns: one.keys };
  const longest = Math.max(...[names.rows, names.columns].map((name) => trace.sides[name].tokens.length));
  if (longest > 3 * MAX_SHADED || one.data.kind === "overview") {
    fill(
      room,
      notice(
        `This text has ${formatCount(longest)} tokens, too many to read here. `,
        textButton("Open the map", () => app.navigate({ view: "map" }))
      )
    );
    return;
  }
  const columns = paragraph(trace, names.columns);
  const labelled = isLabelled(trace, names);
  const rows = labelled || sameUnits(trace, names.rows, names.columns) ? columns : paragraph(trace, names.rows);
  const effect = effectOf(trace, names, rows, columns);
  const mode = effect && app.state.show !== "looked" ? "mattered" : "looked";
  const detail = make("div", { class: "detail" });
  const head = chosen.head < 0 ? "mean of all heads" : `head ${chosen.head}`;
  fill(
    room,
    effect ? effectVerdict(trace, effect, columns.units) : null,
    effect ? toggle("Show", TWO_MODES, mode, (show) => app.navigate({ show })) : null,
    mode === "looked" ? selectionControls(app, number, chosen, "") : null,
    mutedText(
      mode === "looked"
        ? `Point at a word to shade what it looked at (${attentionTitle(trace, one)}, ${head}); click it to keep that.`
        : effect?.whole
          ? "Shaded: the words without which the label is less likely. Leaving a word out can break the grammar."
          : "Point at a word to shade the words without which it is less likely; click it to keep that. Leaving a " +
            "word out can break the grammar, and of two words that say the same, each seems to have no effect."
    ),
    labelled ? labelTrack(trace, names, columns) : null,
    make(
      "div",
      { class: rows === columns ? "" : "two-texts" },
      rows === columns ? null : block(trace, columns),
      block(trace, rows)
    ),
    detail,
    surprisal(trace, rows),
    effect ? null : mutedText("“What mattered” is not in this trace. To see it: regard look MODEL TEXT")
  );
  follow(app, number, chosen, { rows, columns }, detail, mode === "mattered" ? effect : null);
}

/**
 * Where the tokens that were written lie in a text that ends with them.
 * @param {Trace} trace
 * @param {string} side
 * @param {string} written
 */
function writtenOffset(trace, side, written) {
  if (side === written) return 0;
  const [text, own] = [trace.sides[side].tokens, trace.sides[written]?.tokens ?? []];
  for (let offset = Math.max(0, text.length - own.length); offset < text.length; offset++)
    if (text.slice(offset).every((token, i) => token === own[i])) return offset;
  return null;
}

/**
 * What mattered for each word of the rows, in nats; `whole` if it is one row for all, the effect on a label.
 * @typedef {{matrix: import("./verdict.js").Matrix, idle: number[], whole: boolean}} Effect
 * @param {Trace} trace
 * @param {{rows: string, columns: string}} names
 * @param {Paragraph} rows
 * @param {Paragraph} columns
 * @returns {Effect | null}
 */
function effectOf(trace, names, rows, columns) {
  const { influence } = trace;
  if (!influence || influence.columns !== names.columns) return null;
  if (trace.sides[influence.rows]?.tokens.length === 1 && influence.rows !== names.rows) {
    const found = readInfluence(trace, [{ name: "", first: 0, last: 0, word: null }], columns.units);
    return found && { ...found, whole: true };
  }
  const offset = influence.rows === names.rows ? 0 : writtenOffset(trace, rows.side, influence.rows);
  if (offset === null) return null;
  const moved = rows.units.map((unit) => ({ ...unit, first: unit.first - offset, last: unit.last - offset }));
  const found = readInfluence(trace, moved, columns.units);
  return found && { ...found, whole: false };
}

/**
 * @param {Trace} trace
 * @param {Effect} effect
 * @param {Unit[]} units
 */
function effectVerdict(trace, { matrix, idle, whole }, units) {
  const label = whole && trace.influence ? trace.sides[trace.influence.rows].tokens[0] : "";
  const sums = columnSums(matrix);
  const order = largest(sums, 3).filter((j) => sums[j] >= 0.15);
  const named = (/** @type {number[]} */ list) => list.flatMap((j, k) => [k ? ", " : "", isolatedText(units[j].name)]);
  const sure = trace.written && whole ? Math.exp(trace.written.log_probabilities[0]) : null;
  return make(
    "p",
    { class: "verdict" },
    ...(label ? [isolatedText(label), sure === null ? "" : ` (${formatPercent(sure)})`, ": "] : []),
    ...(order.length ? ["What mattered most: ", ...named(order), ". "] : ["No single word mattered. "]),
    ...(idle.length && order.length
      ? [`Without effect: `, ...named(idle.slice(0, 6)), idle.length > 6 ? ` and ${idle.length - 6} more.` : "."]
      : [])
  );
}

/**
 * @param {Trace} trace
 * @param {string} side
 * @returns {Paragraph}
 */
function paragraph(trace, side) {
  const units = readableUnits(trace.sides[side]).slice(0, MAX_SHADED);
  const words = units.map((unit, at) =>
    make(
      "button",
      { type: "button", class: "w", tabindex: at ? "-1" : "0", "aria-pressed": "false", "data-at": at },
      isolatedText(unit.name)
    )
  );
  return { side, units, words };
}

/** @param {Trace} trace @param {Paragraph} text */
function block(trace, { side, units, words }) {
  const spans = trace.sides[side].words;
  /** @param {number} at whether the text has no space after this word */
  const joined = (at) => {
    const [own, next] = [units[at], units[at + 1]].map((unit) => spans?.[unit?.word ?? -1]);
    return own && next && own.end === next.start;
  };
  return make(
    "div",
    { class: "shaded", role: "group", "aria-label": side, dir: directionOf(textOf(trace.sides[side])) },
    ...words.flatMap((word, at) => [word.parentElement ?? word, joined(at) ? "" : " "])
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
  const alike = labelled.words?.length === plain.words?.length && labelled.tokens.length === plain.tokens.length;
  return rows === "labels" && alike;
}

/**
 * Write the label of each word under it, in a colour of its own, and return the key of the colours.
 * @param {Trace} trace
 * @param {{rows: string, columns: string}} names
 * @param {Paragraph} text
 */
function labelTrack(trace, names, text) {
  const marked = readableUnits(trace.sides[names.rows]);
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
    ...shown.map(([kind, at]) => {
      const place = String(at % LABEL_COLOURS);
      return make("li", {}, make("small", { class: "label", "data-kind": place }, visibleText(kind)));
    })
  );
}

/**
 * The probability of every word, under it, where the trace has them: how surprising each was.
 * @param {Trace} trace
 * @param {Paragraph} text
 */
function surprisal(trace, text) {
  const written = trace.written;
  const offset = written ? writtenOffset(trace, text.side, written.side) : null;
  if (!written || offset === null) return null;
  const moved = text.units.map((unit) => ({ ...unit, first: unit.first - offset, last: unit.last - offset }));
  const own = moved.filter(({ first }) => first >= 0);
  const sure = wordProbabilities(written, own);
  let nats = 0;
  sure.forEach((probability, k) => {
    const at = text.units.length - own.length + k;
    if (!(probability > 0)) return;
    nats -= Math.log(probability);
    const word = text.words[at];
    word.classList.add("surprising");
    word.style.setProperty("--surprise", String(clamp(0, -Math.log(probability) / 8, 1)));
    word.title = `probability ${formatPercent(probability)}, surprisal ${formatFixed(-Math.log(probability), 2)} nats`;
  });
  return mutedText(
    "The line under a word shows its surprisal, −log p: on average " +
      `${formatFixed(nats / Math.max(1, sure.length), 2)} nats a word.`
  );
}

/**
 * Shade the words that the active word looked at; the strongest are named below.
 * @param {App} app
 * @param {number} number
 * @param {{attention: number, head: number, offset: number}} chosen
 * @param {{rows: Paragraph, columns: Paragraph}} texts
 * @param {HTMLElement} detail
 * @param {Effect | null} effect what mattered, in place of the weights
 */
function follow(app, number, chosen, { rows, columns }, detail, effect) {
  const trace = app.traces[number];
  const one = trace.attentions[chosen.attention];
  const sizes = attentionSize(trace, one);
  /** @type {Map<number, Promise<Float32Array>>} */
  const known = new Map();
  /** @param {number} at the weights of a word, on the words of the columns */
  const weightsOf = (at) => {
    let found = known.get(at);
    if (!found) {
      found = effect ? effectRow(effect, at) : rowWeights(app, number, chosen, rows.units[at], columns.units, sizes);
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
    const weights = at === null && !effect?.whole ? null : await weightsOf(at ?? 0).catch(() => null);
    if (request !== asked) return;
    const strongest = weights ? largest(weights, 5).filter((j) => weights[j] >= 0.01) : [];
    const high = Math.max(effect ? MIN_NATS : 0, weights && strongest.length ? weights[strongest[0]] : 1);
    columns.words.forEach((word, j) => {
      const share = weights ? clamp(0, weights[j] / high, 1) : 0;
      word.classList.toggle("far", share >= 0.03);
      word.classList.toggle("most", j === strongest[0]);
      if (share >= 0.03) word.style.setProperty("--share", share.toFixed(3));
      else word.style.removeProperty("--share");
    });
    if (rows !== columns && strongest.length) reveal(columns.words[strongest[0]]);
    if (at === null || !weights || effect?.whole) return fill(detail);
    const number = (/** @type {number} */ value) => (effect ? `${formatFixed(value, 2)} nats` : formatPercent(value));
    const told = strongest.flatMap((j, k) => [
      k ? ", " : effect ? " owes most to " : " looked at ",
      isolatedText(columns.units[j].name),
      ` ${number(weights[j])}`
    ]);
    const own = make("strong", {}, isolatedText(rows.units[at].name));
    fill(detail, own, ...(told.length ? told : [effect ? " owes nothing to one word" : " looked at nothing"]), ".");
  };
  const area = /** @type {HTMLElement | null} */ (rows.words[0]?.closest(".shaded"));
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
  walkWords(area, rows.words, place, (to) => {
    if (to === null) {
      pinned = null;
      void show(null);
      return;
    }
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
 * Let arrow keys walk the words of a paragraph, which is one stop of the Tab key.
 * @param {HTMLElement} area
 * @param {HTMLElement[]} words
 * @param {(target: EventTarget | null) => number | null} place
 * @param {(to: number | null) => void} moved with the word, or null for Escape
 */
function walkWords(area, words, place, moved) {
  area.addEventListener("keydown", (event) => {
    const at = place(event.target);
    if (event.key === "Escape") moved(null);
    if (at === null) return;
    const forward = area.dir === "rtl" ? "ArrowLeft" : "ArrowRight";
    const last = words.length - 1;
    /** @type {Record<string, number | undefined>} */
    const steps = { ArrowLeft: at - 1, ArrowRight: at - 1, Home: 0, End: last, [forward]: at + 1 };
    const to = steps[event.key];
    if (to === undefined || to < 0 || to > last) return;
    words[at].tabIndex = -1;
    words[to].tabIndex = 0;
    words[to].focus();
    event.preventDefault();
    moved(to);
  });
}

/** Scroll a paragraph, and not the page, to a word. @param {HTMLElement} word */
function reveal(word) {
  const room = /** @type {HTMLElement} */ (word.closest(".shaded"));
  const [own, all] = [word.getBoundingClientRect(), room.getBoundingClientRect()];
  if (own.top < all.top || own.bottom > all.bottom) room.scrollTop += own.top - all.top - all.height / 2;
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
    const region = { top, left: 0, rows, columns: sizes.columns };
    const part = await app.source.map(number, chosen.attention, head, region, 1);
    for (let i = 0; i < sum.length; i++) sum[i] += part.values[i] / heads.length;
  }
  return groupTokens(sum, sizes.columns, [{ ...unit, first: 0, last: rows - 1 }], columns);
}

/**
 * What a word owes to each word, in nats, of what is above zero.
 * @param {Effect} effect
 * @param {number} at
 */
async function effectRow({ matrix, whole }, at) {
  const from = whole ? 0 : at * matrix.columns;
  return matrix.values.slice(from, from + matrix.columns).map((value) => Math.max(0, value));
}
