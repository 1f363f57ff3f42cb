// What a model predicts at each place of a text: how probable each word was, which ones were likely instead, and what
// may come next. For labels: how probable each was, and the next labels. The surprisal of a word is −log p, in nats.

import { isolatedText, make } from "./dom.js";
import { clamp, formatFixed, formatPercent, largest } from "./numbers.js";
import { isSeparator, visibleText } from "./text.js";
import { isMark, wordProbabilities } from "./verdict.js";

const MAX_RIVALS = 3;
const DARKEST = 8; // nats of the darkest shade
const SURPRISING = 2.3; // nats of a word that the first line names: less likely than 10 %

/** @typedef {{text: string, probability: number}} Candidate */
/**
 * For each word its probability, null if there is none, and other candidates; and the candidates for what comes next.
 * `own` says that they are what the model itself wrote, and `labels` that they are labels.
 * @typedef {{sure: (number | null)[], rivals: Candidate[][], next: Candidate[], own: boolean,
 *   labels: boolean}} Predicted
 */

/**
 * @param {Trace} trace
 * @param {string} side
 * @param {Unit[]} units of this side
 * @returns {Predicted | null}
 */
export function predictedWords(trace, side, units) {
  const { predictions, written } = trace;
  if (predictions && predictions.side !== side) return null;
  if (!predictions) {
    const offset = written ? writtenOffset(trace, side, written.side) : null;
    if (!written || offset === null) return null;
    const moved = units.map((unit) => ({ ...unit, first: unit.first - offset, last: unit.last - offset }));
    const own = wordProbabilities(written, moved);
    const sure = own.map((one, at) => (moved[at].first >= 0 ? one : null));
    return { sure, rivals: units.map(() => []), next: [], own: written.side === side, labels: false };
  }
  const { tokens } = trace.sides[side];
  const labels = side === "labels";
  return {
    sure: units.map(({ first, last }) => {
      const logs = predictions.log_probabilities.slice(first, last + 1);
      let sum = 0;
      for (const one of logs) sum += one ?? 0;
      return typeof logs[0] === "number" ? Math.exp(sum) : null;
    }),
    rivals: units.map((unit) => rivalsIn(predictions, tokens, unit, labels)),
    next: candidatesAt(predictions, tokens.length, []),
    own: labels,
    labels
  };
}

/**
 * The candidates at a place, after some tokens of the same word.
 * @param {Predictions} predictions
 * @param {number} place
 * @param {string[]} before
 * @returns {Candidate[]}
 */
function candidatesAt({ candidates, candidate_log_probabilities: logs }, place, before) {
  return (candidates?.[place] ?? []).map((token, k) => {
    const text = [...before, token].join("").replaceAll("▁", " ").replaceAll("<0x0A>", "↵");
    return {
      text: isSeparator(token) && !/^<0x/.test(token) ? "(end)" : visibleText(text.trim() || text),
      probability: Math.exp(logs?.[place]?.[k] ?? -Infinity)
    };
  });
}

/**
 * What the model found likely instead of a word, at any of its tokens.
 * @param {Predictions} predictions
 * @param {string[]} tokens
 * @param {Unit} unit
 * @param {boolean} labels
 */
function rivalsIn(predictions, tokens, { first, last }, labels) {
  let before = 0; // the log-probability of the tokens before
  /** @type {Candidate[]} */
  const found = [];
  // The first word of a text has no probability, and a blank has candidates at its one token.
  const until = predictions.log_probabilities[first] === null ? first : last;
  for (let t = first; t <= until; t++) {
    candidatesAt(predictions, t, labels ? [] : tokens.slice(first, t)).forEach(({ text, probability }, k) => {
      const own = labels ? k === 0 : predictions.candidates?.[t][k] === tokens[t];
      if (!own) found.push({ text, probability: probability * Math.exp(before) });
    });
    before += predictions.log_probabilities[t] ?? 0;
  }
  return found.sort((a, b) => b.probability - a.probability).slice(0, MAX_RIVALS);
}

/**
 * Where the tokens that were written lie in a text that ends with them.
 * @param {Trace} trace
 * @param {string} side
 * @param {string} written
 */
export function writtenOffset(trace, side, written) {
  if (side === written) return 0;
  const [text, own] = [trace.sides[side].tokens, trace.sides[written]?.tokens ?? []];
  for (let offset = Math.max(0, text.length - own.length); offset < text.length; offset++)
    if (text.slice(offset).every((token, i) => token === own[i])) return offset;
  return null;
}

/**
 * Shade words by their surprisal.
 * @param {Predicted} predicted
 * @param {HTMLElement[]} words
 */
export function shadeSurprisal({ sure, labels }, words) {
  sure.forEach((probability, at) => {
    if (probability === null || !(probability > 0) || !words[at]) return;
    const nats = -Math.log(probability);
    words[at].classList.add("surprising");
    words[at].style.setProperty("--surprise", clamp(0, nats / DARKEST, 1).toFixed(3));
    words[at].title = labels
      ? `label: ${formatPercent(probability)}`
      : `probability ${formatPercent(probability)}, surprisal ${formatFixed(nats, 2)} nats`;
  });
}

/**
 * The first line of a text with predictions: what surprised the model, or what it doubts; and what it would write next.
 * @param {Predicted} predicted
 * @param {Unit[]} units
 */
export function surpriseVerdict({ sure, rivals, next, own }, units) {
  const nats = sure.map((one, at) => (one !== null && one > 0 && !isMark(units[at].name) ? -Math.log(one) : 0));
  const least = own ? -Math.log(0.6) : SURPRISING;
  const order = largest(nats, 3).filter((at) => nats[at] >= least);
  const blanks = blanksOf({ sure, rivals });
  const told = order.flatMap((at, k) => [
    k ? ", " : own ? "The model doubted " : "Most surprising: ",
    make("em", {}, isolatedText(units[at].name)),
    ` (${formatPercent(sure[at] ?? 0)}${rivals[at][0] ? (own ? "; " : "; expected ") : ""}`,
    ...listOf(rivals[at].slice(0, 1)),
    ")"
  ]);
  return [
    ...(told.length ? [...told, ". "] : []),
    ...blanks.slice(0, 5).flatMap((at) => {
      return [make("em", {}, isolatedText(units[at].name)), ": ", ...listOf(rivals[at]), ". "];
    }),
    ...(next.length ? ["Next: ", ...listOf(next.slice(0, MAX_RIVALS)), ". "] : [])
  ];
}

/**
 * The words that the model fills in: they have candidates, and no probability of their own.
 * @param {Pick<Predicted, "sure" | "rivals">} predicted
 */
export function blanksOf({ sure, rivals }) {
  return [...sure.keys()].filter((at) => sure[at] === null && rivals[at].length);
}

/**
 * "cat 31 %, “.” 12 %"; only the first may be below 1 %.
 * @param {Candidate[]} candidates
 * @returns {(Node | string)[]}
 */
function listOf(candidates) {
  const shown = candidates.filter(({ probability }, k) => !k || probability >= 0.01);
  return shown.flatMap(({ text, probability }, k) => [
    k ? ", " : "",
    make(
      "span",
      { class: "nobr" },
      isolatedText(/^\p{P}+$/u.test(text) ? `“${text}”` : text),
      ` ${formatPercent(probability)}`
    )
  ]);
}

/**
 * What is known of one word: its probability, and what was likely instead.
 * @param {Predicted} predicted
 * @param {number} at
 * @returns {(Node | string)[]}
 */
export function predictionOf({ sure, rivals, labels }, at) {
  const probability = sure[at];
  if (probability === null && rivals[at].length) return [": ", ...listOf(rivals[at]), "."];
  const nats = probability && !labels ? `, ${formatFixed(-Math.log(probability), 2)} nats` : "";
  return [
    ...(probability === null ? [] : [` (${formatPercent(probability)}${nats})`]),
    ".",
    ...(rivals[at]?.length ? [make("span", { class: "quiet" }, " Instead: "), ...listOf(rivals[at]), "."] : [])
  ];
}

/**
 * The mean surprisal of a text, in a sentence.
 * @param {Predicted} predicted
 */
export function meanSurprisal({ sure, labels }) {
  const known = sure.filter((one) => one !== null && one > 0).map((one) => -Math.log(one ?? 1));
  if (!known.length || labels) return null;
  const mean = known.reduce((sum, one) => sum + one, 0) / known.length;
  return (
    "The line under a word, and its shade while none is chosen, show its surprisal, −log p: on average " +
    `${formatFixed(mean, 2)} nats a word.`
  );
}

/**
 * The label of a text or an image, with its probability and the next labels; nothing if the trace has no label.
 * @param {Trace} trace
 * @returns {(Node | string)[]}
 */
export function labelVerdict(trace) {
  const { influence, predictions, written } = trace;
  const side = predictions?.side ?? influence?.rows ?? "";
  const label = trace.sides[side]?.tokens.length === 1 ? isolatedText(trace.sides[side].tokens[0]) : null;
  if (!label || written?.side !== side) return label ? [label, ": "] : [];
  const others = predictions ? candidatesAt(predictions, 0, []).slice(1, 4) : [];
  const sure = formatPercent(Math.exp(written.log_probabilities[0]));
  return [label, ` (${sure}`, ...(others.length ? ["; ", ...listOf(others)] : []), "). "];
}
