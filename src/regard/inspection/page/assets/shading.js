// Texts as paragraphs whose words are shaded: what the word that is pointed at looked at. For one text (a language
// model, a classifier, labels), and for two texts that are too long for ribbons. Rows of large maps are fetched one by
// one.

import { selectedAttention, selectionControls } from "./alignment.js";
import { mutedText, notice, textButton, toggle, TWO_MODES } from "./controls.js";
import { fill, isolatedText, isTouched, make, pickNumber } from "./dom.js";
import { clamp, formatCount, formatFixed, formatPercent, largest } from "./numbers.js";
import { attentionTitle, groupTokens } from "./planes.js";
import {
  blanksOf,
  labelVerdict,
  meanSurprisal,
  predictedWords,
  predictionOf,
  shadeSurprisal,
  surpriseVerdict,
  writtenOffset
} from "./predictions.js";
import { groupHint, groupText, groupWords, leaveOut, missingInfluence } from "./refining.js";
import { directionOf, isSeparator, readableUnits, textOf, visibleText } from "./text.js";
import { columnSums, isMark, MIN_EFFECT, readInfluence } from "./verdict.js";
import { READINGS } from "./views.js";
import { attentionSize } from "./weights.js";

const MAX_SHADED = 4000; // words of a text that is shown as words
const LABEL_COLOURS = 6;
const MIN_NATS = 0.3; // of the darkest shade
const MAX_NOTED = 60; // words of a text that has numbers under its words
const NOT_ONE = "No single word mattered. ";
const TURN = "From here on the model wrote the text.";
const TOGETHER = "Words with a dotted line were left out together with their neighbours.";

/** @typedef {{side: string, units: Unit[], words: HTMLElement[]}} Paragraph */

/**
 * @param {App} app
 * @param {number} number
 * @param {HTMLElement} room
 */
function textReading(app, number, room) {
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
  const predicted = predictedWords(trace, names.rows, rows.units);
  const mode = effect && app.state.show !== "looked" ? "mattered" : "looked";
  const detail = make("div", { class: "detail" });
  const head = chosen.head < 0 ? "mean of all heads" : `head ${chosen.head}`;
  const blanks = predicted ? blanksOf(predicted) : [];
  const [press, keep] = isTouched() ? ["Tap", ""] : ["Point at", "; click it to keep that"];
  if (predicted) shadeSurprisal(predicted, rows.words);
  const mean = predicted && meanSurprisal(predicted);
  fill(
    room,
    firstLine(trace, effect, predicted, { rows, columns }),
    effect ? toggle("Show", TWO_MODES, mode, (show) => app.navigate({ show })) : null,
    effect ? null : mutedText(...missingInfluence(app, number)),
    mode === "looked" ? selectionControls(app, number, chosen, "") : null,
    mutedText(
      mode === "looked"
        ? `${press} a word to shade what it looked at (${attentionTitle(trace, one)}, ${head})${keep}.`
        : effect?.whole
          ? "Shaded: the words without which the label is less likely. Leaving a word out can break the grammar."
          : `${press} a ${blanks.length ? "blank" : "word"} to shade the words without which ` +
            `${blanks.length ? "the first word that fills it" : labelled ? "its label" : "it"} is less likely` +
            `${keep}. Leaving a word out can break the grammar, and of two words that say the same, each seems to ` +
            "have no effect.",
      mode === "mattered" && effect?.groups.length ? ` ${TOGETHER}` : ""
    ),
    labelled ? labelTrack(trace, names, columns) : null,
    mode === "mattered" && effect?.whole ? effectTrack(effect, columns) : null,
    make(
      "div",
      { class: rows === columns ? "" : "two-texts" },
      rows === columns ? null : block(trace, columns),
      block(trace, rows)
    ),
    detail,
    mean && mutedText(mean)
  );
  follow(app, number, chosen, { rows, columns }, detail, mode === "mattered" ? effect : null, predicted);
}

/**
 * What mattered for each word of the rows, in nats; `whole` if it is one row for all, the effect on a label.
 * @typedef {{matrix: import("./verdict.js").Matrix, idle: number[], groups: number[][], whole: boolean}} Effect
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
 * The answer first: the label, what surprised the model, what mattered most, and what did not matter.
 * @param {Trace} trace
 * @param {Effect | null} effect
 * @param {import("./predictions.js").Predicted | null} predicted
 * @param {{rows: Paragraph, columns: Paragraph}} texts
 */
function firstLine(trace, effect, predicted, { rows, columns }) {
  const parts = predicted ? surpriseVerdict(predicted, rows.units) : [];
  if (effect) parts.push(...effectVerdict(trace, effect, columns));
  return parts.length ? make("p", { class: "verdict" }, ...parts) : null;
}

/**
 * @param {Trace} trace
 * @param {Effect} effect
 * @param {Paragraph} columns
 * @returns {(Node | string)[]}
 */
function effectVerdict(trace, { matrix, idle, groups, whole }, { side, units }) {
  const sums = columnSums(matrix).map((sum, j) => (idle.includes(j) || isMark(units[j].name) ? 0 : sum));
  const order = strongestParts(sums, groups, 3).filter(({ value }) => value >= MIN_EFFECT);
  const named = (/** @type {number[][]} */ list) =>
    list.flatMap((part, k) => [
      k ? ", " : "",
      make("em", {}, isolatedText(groupText(trace.sides[side], units, part))),
      part.length > 1 ? "" : ordinal(units, part[0])
    ]);
  const alone = idle.filter((j) => !groups.some((group) => group.includes(j)));
  const without = [...groups.filter((group) => idle.includes(group[0])), ...alone.map((j) => [j])];
  const more = without.length - 6;
  return [
    ...(whole ? labelVerdict(trace) : []),
    ...(order.length ? ["What mattered most: ", ...named(order.map(({ words }) => words)), ". "] : [NOT_ONE]),
    ...(without.length && order.length
      ? ["Without effect: ", ...named(without.slice(0, 6)), more > 0 ? ` and ${more} more.` : "."]
      : [])
  ];
}

const ORDINALS = new Intl.PluralRules("en", { type: "ordinal" });
/** @type {Record<string, string>} */
const ENDINGS = { one: "st", two: "nd", few: "rd" }; // 1st, 21st; 2nd; 3rd; all others end in th

/**
 * Which of several equal words this one is: " (2nd)"; nothing if there is one.
 * @param {Unit[]} units
 * @param {number} at
 */
function ordinal(units, at) {
  const same = [...units.keys()].filter((j) => units[j].name === units[at].name);
  const place = same.indexOf(at) + 1;
  return same.length < 2 ? "" : ` (${place}${ENDINGS[ORDINALS.select(place)] ?? "th"})`;
}

/**
 * The words, or groups of words, with the largest numbers.
 * @param {ArrayLike<number>} numbers of the words
 * @param {number[][]} groups
 * @param {number} most
 * @returns {{words: number[], value: number}[]}
 */
function strongestParts(numbers, groups, most) {
  const inside = new Set(groups.flat());
  const parts = [...groups];
  for (let j = 0; j < numbers.length; j++) if (!inside.has(j)) parts.push([j]);
  const sums = parts.map((part) => part.reduce((sum, j) => sum + numbers[j], 0));
  return largest(sums, most).map((k) => ({ words: parts[k], value: sums[k] }));
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
      isolatedText(unit.name.replace(/^▁(?=.)/u, "")) // the space that it stands for is written
    )
  );
  return { side, units, words };
}

/** @param {Trace} trace @param {Paragraph} text */
function block(trace, { side, units, words }) {
  const spans = trace.sides[side].words;
  const pieces = units.some(({ name, word }) => word === null && name.startsWith("▁"));
  /** @param {number} at whether the text has no space after this word */
  const joined = (at) => {
    const [own, next] = [units[at], units[at + 1]].map((unit) => spans?.[unit?.word ?? -1]);
    if (own && next) return own.end === next.start;
    const names = [units[at], units[at + 1]].map((unit) => unit?.name ?? "▁");
    return pieces && !names[1].startsWith("▁") && !names.some(isSeparator);
  };
  const { written } = trace;
  const offset = written && written.side !== side ? writtenOffset(trace, side, written.side) : null;
  const turn = offset === null ? -1 : units.findIndex(({ first }) => first >= offset);
  return make(
    "div",
    { class: "shaded", role: "group", "aria-label": side, dir: directionOf(textOf(trace.sides[side])) },
    ...words.flatMap((word, at) => [
      at && at === turn ? make("span", { class: "turn", title: TURN, "aria-label": TURN, role: "img" }, "▸ ") : "",
      word.parentElement ?? word,
      joined(at) ? "" : " "
    ])
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
 * Write under each word of a short text what it adds to the label, in nats.
 * @param {Effect} effect
 * @param {Paragraph} text
 */
function effectTrack({ matrix, groups }, { units, words }) {
  if (units.length > MAX_NOTED) return null;
  units.forEach((_, at) => {
    const group = groups.find((one) => one.includes(at));
    const nats = matrix.values[at] * (group?.length ?? 1);
    const told = group && at !== group[0] ? "" : formatFixed(nats, 2);
    make("span", { class: "labelled" }, words[at], make("small", { class: nats < 0 ? "note against" : "note" }, told));
  });
  return mutedText("Under a word: how many nats the label loses without it. A negative word speaks against the label.");
}

/**
 * Shade the words that the active word looked at; the strongest are named below.
 * @param {App} app
 * @param {number} number
 * @param {{attention: number, head: number, offset: number}} chosen
 * @param {{rows: Paragraph, columns: Paragraph}} texts
 * @param {HTMLElement} detail
 * @param {Effect | null} effect what mattered, in place of the weights
 * @param {import("./predictions.js").Predicted | null} predicted
 */
function follow(app, number, chosen, { rows, columns }, detail, effect, predicted) {
  const trace = app.traces[number];
  const one = trace.attentions[chosen.attention];
  const sizes = attentionSize(trace, one);
  const blanks = predicted ? blanksOf(predicted) : [];
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
  const groups = effect?.groups ?? [];
  const refiner = groupRefiner(app, number, columns, detail);
  /** @param {number} value @param {Float32Array} row that it is from */
  const amount = (value, row) =>
    effect ? `${formatFixed(value, 2)} nats` : isShared(row) ? formatPercent(value) : formatFixed(value, 2);
  const area = /** @type {HTMLElement | null} */ (rows.words[0]?.closest(".shaded"));
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
    const strongest = weights ? strongestParts(weights, groups, 5).filter(({ value }) => value >= 0.01) : [];
    const [first] = strongest;
    const marked = !effect || first?.value >= MIN_EFFECT;
    const high = Math.max(effect ? MIN_NATS : 0, weights && first ? first.value / first.words.length : 1);
    area?.classList.toggle("rest", !weights);
    columns.words.forEach((word, j) => {
      const shade = weights ? clamp(0, weights[j] / high, 1) : 0;
      word.classList.toggle("far", shade >= 0.03);
      word.classList.toggle("most", marked && Boolean(first?.words.includes(j)));
      if (shade >= 0.03) word.style.setProperty("--share", shade.toFixed(3));
      else word.style.removeProperty("--share");
    });
    if (rows !== columns && first) reveal(columns.words[first.words[0]]);
    if (at === null || !weights || effect?.whole) return fill(detail);
    const it = predicted ? " It" : "";
    const told = strongest.flatMap(({ words, value }, k) => [
      k ? ", " : it + (effect ? " owes most to " : " looked at "),
      words.length > 1 ? refiner.button(words) : isolatedText(columns.units[words[0]].name),
      ` ${amount(value, weights)}`
    ]);
    const own = make("strong", {}, isolatedText(rows.units[at].name));
    const chances = predicted ? predictionOf(predicted, at) : [];
    const nothing = it + (effect ? " owes nothing to a single word" : " looked at nothing");
    if (effect && blanks.length && !blanks.includes(at)) return fill(detail, own, " is given: the model fills blanks.");
    fill(detail, own, ...chances, ...(told.length ? told : [nothing]), ".");
  };
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
  // Where a click keeps no word, it refines a group: in the text that is read, or in one with a label.
  refiner.mark(groups, rows !== columns || Boolean(effect?.whole));
  area.addEventListener("click", (event) => {
    if (effect?.whole) return;
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
      const told = largest(weights, 3).map((j) => `${columns.units[j].name} ${amount(weights[j], weights)}`);
      app.announce(`${rows.units[to].name}: ${told.join(", ")}`);
    });
  });
  const first = /^[st](\d{1,6})$/.exec(app.state.word ?? "");
  pinned = first ? pickNumber(first[1], rows.units.length, -1) : -1;
  if (pinned < 0) pinned = blanks.length === 1 ? blanks[0] : null;
  void show(pinned);
}

/**
 * What shows groups of words, and leaves out each word of one.
 * @param {App} app
 * @param {number} number
 * @param {Paragraph} columns
 * @param {HTMLElement} detail
 */
function groupRefiner(app, number, columns, detail) {
  const trace = app.traces[number];
  /** @param {number[]} group */
  const refine = async (group) => {
    if (!trace.refines) return;
    fill(detail, make("span", { class: "quiet", role: "status" }, `Leaving out each of ${group.length} words …`));
    try {
      await leaveOut(app, number, groupWords(columns.units, group));
      if (!detail.isConnected) return;
      app.navigate({});
      /** @type {HTMLElement | null} */ (document.querySelector('.shaded .w[aria-pressed="true"]'))?.focus();
    } catch (error) {
      fill(detail, make("p", { class: "wrong", role: "alert" }, /** @type {Error} */ (error).message));
    }
  };
  /** The text of a group, to be pressed where there is a model. @param {number[]} group */
  const button = (group) => {
    const text = isolatedText(groupText(trace.sides[columns.side], columns.units, group));
    const title = groupHint(trace, group.length);
    if (!trace.refines) return make("span", { class: "grouped", title }, text);
    return make("button", { type: "button", class: "rival", title, click: () => void refine(group) }, text);
  };
  /** @param {number[][]} groups @param {boolean} pressed whether their words refine them */
  const mark = (groups, pressed) => {
    for (const group of groups)
      for (const word of group.flatMap((j) => columns.words[j] ?? [])) {
        word.classList.add("grouped");
        if (!pressed) continue;
        word.title = groupHint(trace, group.length);
        word.addEventListener("click", () => void refine(group));
      }
  };
  return { button, mark };
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
 * Whether a row is shares of one whole, as those of a softmax are, and not signed as those of RWKV are.
 * @param {Float32Array} row
 */
function isShared(row) {
  return row.every((value) => value >= 0) && row.reduce((sum, value) => sum + value, 0) < 1.01;
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

READINGS.push({ fits: (_, ribbons) => !ribbons, open: textReading });
