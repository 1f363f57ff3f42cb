// The two panes: the text with a mirror of its words behind it, and the translation. A word under the pointer, at the
// caret or chosen by arrow keys lights up together with its counterparts in the other pane.

import { announce, make } from "./browser.js";

/**
 * @typedef {import("./requests.js").Sentence} Sentence
 * @typedef {import("./requests.js").Span} Span
 * @typedef {"source" | "target"} Side
 * @typedef {{ side: Side, sentence: number, number: number, element: HTMLElement }} Word
 */

const LARGE_TEXT = 300;
const HAS_LETTER = /[\p{L}\p{N}]/u;

export class Panes {
  /**
   * @param {HTMLTextAreaElement} text
   * @param {HTMLElement} mirror
   * @param {HTMLElement} result
   * @param {(sentence: number, span: Span | null, anchor: HTMLElement) => void} choose a word was chosen
   */
  constructor(text, mirror, result, choose) {
    this.text = text;
    this.mirror = mirror;
    this.result = result;
    this.choose = choose;
    /** @type {Sentence[]} */
    this.sentences = [];
    /** @type {Word[]} */
    this.words = [];
    /** @type {Map<Element, Word>} */
    this.byElement = new Map();
    this.translation = "";
    /** The sentence that the user looked at last. */
    this.current = 0;
    /** @type {Word | null} */
    this.chosen = null;
    this.listen();
  }

  /** Follow the text while it is typed: the mirror gives the pane its height. */
  follow() {
    const { value } = this.text;
    this.mirror.textContent = `${value}\u200b`;
    this.words = this.words.filter(({ side }) => side === "target");
    this.light(null);
    for (const box of [this.text, this.mirror, this.result]) box.classList.toggle("small", value.length > LARGE_TEXT);
  }

  /**
   * Show sentences of the text that the text area has now.
   * @param {Sentence[]} sentences
   */
  show(sentences) {
    const { value } = this.text;
    this.sentences = sentences;
    this.words = [];
    this.byElement.clear();
    this.chosen = null;
    this.current = Math.min(this.current, Math.max(0, sentences.length - 1));
    const [before, after] = [new DocumentFragment(), new DocumentFragment()];
    let line = make("p", { dir: "auto" });
    after.append(line);
    let place = 0;
    this.translation = "";
    sentences.forEach((one, number) => {
      const gap = value.slice(place, one.start);
      before.append(gap);
      gap.split("\n").forEach((part, i) => {
        if (i) after.append((line = make("p", { dir: "auto" })));
        line.append(part);
      });
      const found = one.known;
      before.append(this.sentence("source", number, one.text, found?.alignment?.source ?? []));
      line.append(found ? this.sentence("target", number, found.text, targetSpans(found))
        : make("span", { class: "waiting" }, "…"));
      this.translation += gap + (found?.text ?? "");
      place = one.start + one.text.length;
    });
    before.append(`${value.slice(place)}\u200b`);
    this.mirror.replaceChildren(before);
    this.result.replaceChildren(...(sentences.length ? [after] : []));
  }

  /** @param {Side} side @param {number} sentence @param {string} text @param {Span[]} spans */
  sentence(side, sentence, text, spans) {
    const element = make("span", { class: "sentence" });
    let place = 0;
    spans.forEach(({ start, end }, number) => {
      const own = text.slice(start, end);
      if (start < place || !HAS_LETTER.test(own)) return;
      const word = make("span", { class: "word" }, own);
      element.append(text.slice(place, start), word);
      place = end;
      const entry = { side, sentence, number, element: word };
      this.words.push(entry);
      this.byElement.set(word, entry);
    });
    element.append(text.slice(place));
    return element;
  }

  /** The counterparts of a word. @param {Word} word @returns {Word[]} */
  counterparts(word) {
    const links = this.sentences[word.sentence]?.known?.alignment?.links ?? [];
    const other = word.side === "source" ? "target" : "source";
    const numbers = new Set(links.filter((link) => link[word.side] === word.number).map((link) => link[other]));
    return this.words.filter((one) => one.side === other && one.sentence === word.sentence && numbers.has(one.number));
  }

  /** Light a word and its counterparts; null turns the light off. @param {Word | null} word */
  light(word) {
    for (const one of document.querySelectorAll(".word.on, .word.linked")) one.classList.remove("on", "linked");
    if (!word) return;
    this.current = word.sentence;
    word.element.classList.add("on");
    for (const one of this.counterparts(word)) one.element.classList.add("linked");
  }

  /** Choose a word by keys. @param {Word | undefined} word */
  focusWord(word) {
    if (!word) return;
    this.chosen = word;
    this.light(word);
    word.element.scrollIntoView({ block: "nearest" });
    const others = this.counterparts(word).map(({ element }) => element.textContent).join(" ");
    announce(others ? `${word.element.textContent}: ${others}` : word.element.textContent ?? "");
  }

  listen() {
    const { text, result } = this;
    result.addEventListener("pointerover", (event) => this.light(this.wordOf(event.target)));
    result.addEventListener("pointerleave", () => this.light(this.chosen));
    text.addEventListener("pointermove", ({ clientX, clientY }) => {
      const below = document.elementsFromPoint(clientX, clientY).find((one) => this.byElement.has(one));
      this.light(below ? this.wordOf(below) : this.caretWord());
    });
    text.addEventListener("pointerleave", () => this.light(this.caretWord()));
    document.addEventListener("selectionchange", () => {
      if (document.activeElement === text) this.light(this.caretWord());
    });
    text.addEventListener("blur", () => this.light(null));
    result.addEventListener("focus", () => {
      if (result.matches(":focus-visible")) this.focusWord(this.chosen ?? this.targets()[0]);
    });
    result.addEventListener("blur", () => this.light(null));
    result.addEventListener("click", (event) => {
      const word = this.wordOf(event.target);
      if (word && getSelection()?.isCollapsed !== false) this.open(word);
    });
    result.addEventListener("keydown", (event) => this.pressed(event));
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.altKey || event.metaKey || event.ctrlKey) return;
    const words = this.targets();
    const at = this.chosen ? words.indexOf(this.chosen) : -1;
    const forward = this.chosen && getComputedStyle(this.chosen.element).direction === "rtl" ? -1 : 1;
    /** @type {Record<string, number>} */
    const moves = { ArrowRight: at + forward, ArrowLeft: at - forward, ArrowDown: this.sentenceStart(words, at, 1),
      ArrowUp: this.sentenceStart(words, at, -1), Home: 0, End: words.length - 1 };
    if (event.key in moves) this.focusWord(words[Math.max(0, Math.min(words.length - 1, moves[event.key]))]);
    else if ((event.key === "Enter" || event.key === " ") && this.chosen) this.open(this.chosen);
    else if (event.key === "Escape") this.text.focus();
    else return;
    event.preventDefault();
  }

  /** The first word of the sentence after or before. @param {Word[]} words @param {number} at @param {number} step */
  sentenceStart(words, at, step) {
    const wanted = (words[at]?.sentence ?? 0) + step;
    const found = words.findIndex(({ sentence }) => sentence === wanted);
    return found < 0 ? at : found;
  }

  /** @param {Word} word */
  open(word) {
    const found = this.sentences[word.sentence].known;
    this.chosen = word;
    if (found) this.choose(word.sentence, targetSpans(found)[word.number], word.element);
    this.light(word); // as long as the window is open
  }

  targets() {
    return this.words.filter(({ side }) => side === "target");
  }

  /** @param {EventTarget | null} target */
  wordOf(target) {
    const element = target instanceof Element ? target.closest(".word") : null;
    return (element && this.byElement.get(element)) || null;
  }

  /** The word of the text at the caret, while nothing is selected. */
  caretWord() {
    const { selectionStart: at, selectionEnd: end } = this.text;
    if (document.activeElement !== this.text || at !== end) return null;
    return this.words.find(({ side, sentence, number }) => {
      const one = this.sentences[sentence];
      const span = one.known?.alignment?.source[number];
      return side === "source" && span && one.start + span.start <= at && at <= one.start + span.end;
    }) ?? null;
  }
}

/**
 * The words of a translation: of its alignment, or as the browser splits them.
 * @param {import("./requests.js").Result} result
 */
function targetSpans({ text, alignment }) {
  if (alignment) return alignment.target;
  if (!("Segmenter" in Intl)) return [];
  return [...new Intl.Segmenter(undefined, { granularity: "word" }).segment(text)]
    .map(({ index, segment }) => ({ start: index, end: index + segment.length }));
}
