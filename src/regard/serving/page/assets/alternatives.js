// Other translations of a sentence: of the whole, and from a chosen word on. They stand in a small window at the word;
// the one that is chosen replaces the translation.

import { make } from "./browser.js";
import { askJson, readResult, RequestError } from "./requests.js";

/**
 * @typedef {import("./requests.js").Result} Result
 * @typedef {import("./requests.js").Sentence} Sentence
 * @typedef {import("./requests.js").Span} Span
 */

const SHOWN = 5;
/** The length penalty of translations, the mean, lets long texts that repeat themselves into a list of many. */
const SENTENCE_SEARCH = { nbest: 8, beams: 8, length_penalty: 0.6 };
const WORD_SEARCH = { nbest: 24, beams: 24, length_penalty: "none" };
const FIRST_WORD = /^[\p{L}\p{M}\p{N}]+(?:[-'’][\p{L}\p{M}\p{N}]+)*|^\S/u;

/** The first word of a text. @param {string} text */
function firstWord(text) {
  return FIRST_WORD.exec(text.trimStart())?.[0] ?? "";
}

/**
 * The results that continue a prefix with another word than the current translation does, each with a word of its own.
 * @param {Result[]} results the best first
 * @param {string} prefix
 * @param {string} current
 */
function differingFrom(results, prefix, current) {
  const seen = new Set([firstWord(current.slice(prefix.length))]);
  return results.filter(({ text }) => {
    const next = firstWord(text.slice(prefix.length));
    if (!text.startsWith(prefix) || !next || seen.has(next)) return false;
    seen.add(next);
    return true;
  });
}

/**
 * A text in three parts, the middle of which differs from another text; whole words.
 * @param {string} text
 * @param {string} other
 */
function changedPart(text, other) {
  const [own, its] = [text, other].map((one) => one.split(/(\s+)/));
  const shorter = Math.min(own.length, its.length);
  let [first, last] = [0, 0];
  while (first < shorter && own[first] === its[first]) first++;
  while (last < shorter - first && own[own.length - 1 - last] === its[its.length - 1 - last]) last++;
  const end = own.length - last;
  return [own.slice(0, first), own.slice(first, end), own.slice(end)].map((part) => part.join(""));
}

export class Alternatives {
  /**
   * @param {HTMLElement} box
   * @param {{ fields: (sentence: Sentence) => object, chosen: (number: number, result: Result) => void,
   *   look: (number: number) => void, closed: (back: boolean) => void }} actions
   */
  constructor(box, actions) {
    this.box = box;
    this.actions = actions;
    /** @type {AbortController | null} */
    this.running = null;
    box.addEventListener("keydown", (event) => this.pressed(event));
    document.addEventListener("pointerdown", (event) => {
      if (!box.hidden && !box.contains(/** @type {Node} */ (event.target))) this.close(false);
    });
    addEventListener("resize", () => this.close(false));
  }

  /**
   * Show the alternatives of a sentence.
   * @param {number} number of the sentence
   * @param {Sentence} sentence
   * @param {Span | null} span the chosen word of the translation
   * @param {HTMLElement} anchor
   */
  open(number, sentence, span, anchor) {
    const current = sentence.known;
    if (!current) return;
    this.running?.abort();
    const own = (this.running = new AbortController());
    const word = span && current.text.slice(span.start, span.end);
    const prefix = span ? current.text.slice(0, span.start).trimEnd() : "";
    const close = make("button", { type: "button", class: "icon-button", "aria-label": "Close",
      click: () => this.close(true) }, "×");
    const groups = [];
    if (word) {
      groups.push(this.group("Instead of “", word, "”", number, current, async () => differingFrom(
        await this.ask(sentence, { ...WORD_SEARCH, prefix }, own.signal), prefix, current.text)));
    }
    groups.push(this.group("Whole sentence", "", "", number, current, async () =>
      (await this.ask(sentence, SENTENCE_SEARCH, own.signal))
        .filter(({ text }) => text !== current.text)));
    const look = make("button", { type: "button", class: "ghost", click: () => this.actions.look(number) },
      "Attention of this sentence");
    this.box.replaceChildren(close, ...groups, look);
    this.box.hidden = false;
    this.place(anchor);
    this.box.focus({ preventScroll: true });
  }

  /** @param {Sentence} sentence @param {object} fields @param {AbortSignal} signal @returns {Promise<Result[]>} */
  async ask(sentence, fields, signal) {
    const answer = await askJson("api/v1/translate",
      { ...this.actions.fields(sentence), ...fields, text: sentence.text }, signal);
    const [best] = answer.translations;
    return [best, ...best.alternatives].map((one) => readResult(sentence.text, one));
  }

  /**
   * A list with a heading, which is filled when the server has answered.
   * @param {string} before @param {string} word @param {string} after
   * @param {number} number
   * @param {Result} current
   * @param {() => Promise<Result[]>} find
   */
  group(before, word, after, number, current, find) {
    const list = make("ul", {}, make("li", { class: "quiet" }, "Looking…"));
    const heading = make("h2", {}, before, word && make("bdi", {}, word), after);
    find().then((found) => list.replaceChildren(...found.slice(0, SHOWN).map((one) => {
      const [start, middle, end] = changedPart(one.text, current.text);
      return make("li", {}, make("button", { type: "button", class: "alternative", dir: "auto", click: () => {
        this.close(true);
        this.actions.chosen(number, one);
      } }, start, make("strong", {}, middle), end));
    }), ...(found.length ? [] : [make("li", { class: "quiet" }, "The model has no other.")])), (error) => {
      if (error instanceof RequestError) list.replaceChildren(make("li", { class: "wrong" }, error.advice));
    });
    return make("section", {}, heading, list);
  }

  /** Put the window below its anchor, inside the page; on a narrow screen the style sheet puts it at the bottom.
   * @param {HTMLElement} anchor */
  place(anchor) {
    const at = anchor.getBoundingClientRect();
    const { clientWidth } = document.documentElement;
    const left = Math.max(12, Math.min(at.left, clientWidth - this.box.offsetWidth - 12));
    this.box.style.left = `${left + scrollX}px`;
    this.box.style.top = `${at.bottom + scrollY + 8}px`;
  }

  /** @param {boolean} back whether the focus goes back to the translation */
  close(back) {
    if (this.box.hidden) return;
    this.running?.abort();
    this.box.hidden = true;
    this.actions.closed(back);
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    const buttons = [...this.box.querySelectorAll("button")];
    const at = buttons.findIndex((one) => one === document.activeElement);
    if (event.key === "Escape") this.close(true);
    else if (event.key === "ArrowDown") buttons[(Math.max(at, 0) + 1) % buttons.length].focus();
    else if (event.key === "ArrowUp") buttons.at(at < 1 ? -1 : at - 1)?.focus();
    else if (event.key === "Tab" && (event.shiftKey ? at <= 0 : at === buttons.length - 1)) this.close(true);
    else return;
    event.preventDefault();
  }
}
