// The page: asks the server what it serves, and connects the parts. Translates 300 ms after the last change.

import { Alternatives } from "./alternatives.js";
import { announce, byId, copyText, keep, languageName, make, Message, recall, startTheme } from "./browser.js";
import { startCompletion } from "./completion.js";
import { Files, Glossary } from "./panels.js";
import { Panes } from "./panes.js";
import { askJson, TranslationSession, useKey } from "./requests.js";

/**
 * @typedef {import("./requests.js").Direction} Direction
 * @typedef {import("./requests.js").Language} Language
 * @typedef {import("./requests.js").Result} Result
 * @typedef {import("./requests.js").Sentence} Sentence
 */

const PAUSE = 300;
const AUTO = "auto";

/** @param {HTMLSelectElement} select @param {string[][]} options codes and names @param {string} chosen */
function fillSelect(select, options, chosen) {
  select.replaceChildren(...options.map(([code, name]) => make("option", { value: code }, name)));
  select.value = options.some(([code]) => code === chosen) ? chosen : (options[0]?.[0] ?? "");
}

/** The translator: what happens when the user types, chooses and clicks. */
class TranslatorPage {
  /**
   * @param {any} settings of the server
   * @param {Language[]} languages
   * @param {any[]} models
   * @param {Message} message
   */
  constructor(settings, languages, models, message) {
    this.settings = settings;
    this.languages = languages;
    this.models = models;
    this.message = message;
    this.text = /** @type {HTMLTextAreaElement} */ (byId("text"));
    this.result = byId("result");
    this.source = /** @type {HTMLSelectElement} */ (byId("source"));
    this.target = /** @type {HTMLSelectElement} */ (byId("target"));
    this.bySentence = /** @type {HTMLInputElement} */ (byId("by-sentence"));
    /** @type {Direction} the direction of the translation that is shown; the source is never "auto" */
    this.direction = { source: "", target: "" };
    this.timer = 0;
    this.glossary = new Glossary(() => this.changed());
    this.session = new TranslationSession({
      batchLimit: settings.batchLimit,
      languages,
      aligns: (pair) => this.modelOf(pair)?.aligns ?? false,
      glossary: (pair) => this.glossary.entries(pair)
    }, (...shown) => this.show(...shown));
    this.alternatives = new Alternatives(byId("popover"), {
      fields: (sentence) => this.session.fields(sentence.direction),
      chosen: (number, found) => this.choose(number, found),
      look: (number) => this.look(number),
      closed: (back) => (back ? this.result.focus() : this.panes.light(null))
    });
    this.panes = new Panes(this.text, byId("mirror"), this.result, (number, span, anchor) =>
      this.alternatives.open(number, this.panes.sentences[number], span, anchor));
    message.again = () => this.translate();
    if (settings.filesTranslation) new Files(settings, () => this.chosenDirection());
    byId("files").hidden = !settings.filesTranslation;
  }

  /** Show what was chosen last time, and listen. */
  start() {
    const { source, target, text, result, bySentence } = this;
    const sources = this.languages.filter(({ targets }) => targets.length);
    const detect = sources.length > 1 ? [[AUTO, "Detect language"]] : [];
    fillSelect(source, [...detect, ...sources.map(({ code }) => [code, this.nameOf(code)])], recall("source", AUTO));
    this.chooseLanguages();
    bySentence.checked = recall("by-sentence", true) === true;
    bySentence.addEventListener("change", () => {
      keep("by-sentence", bySentence.checked);
      this.changed();
    });
    for (const select of [source, target]) {
      select.addEventListener("change", () => {
        this.chooseLanguages();
        this.changed();
      });
    }
    text.addEventListener("input", () => this.changed());
    text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      if (this.timer) this.translate();
      result.focus();
    });
    result.addEventListener("copy", (event) => {
      if (getSelection()?.isCollapsed === false) return;
      event.clipboardData?.setData("text/plain", this.panes.translation);
      event.preventDefault();
    });
    /** @type {(id: string, work: () => void) => void} */
    const click = (id, work) => byId(id).addEventListener("click", work);
    click("clear", () => {
      text.value = "";
      this.changed();
      text.focus();
    });
    click("swap", () => this.swap());
    click("copy", () => this.copy());
    click("look", () => this.look(this.panes.current));
    click("alternatives", () => this.alternatives.open(this.panes.current, this.panes.sentences[this.panes.current],
      null, byId("alternatives")));
    byId("translator").hidden = false;
    this.changed();
    text.focus();
  }

  /** @param {string} code */
  nameOf(code) {
    return languageName(code, this.languages.find((one) => one.code === code)?.name);
  }

  /** @param {Direction} pair */
  modelOf(pair) {
    return this.models.find(({ directions }) => directions.some((/** @type {Direction} */ one) =>
      one.source === pair.source && one.target === pair.target));
  }

  /** The languages that can be translated into. @param {string} code */
  targetsOf(code) {
    return this.languages.find((one) => one.code === code)?.targets ?? [];
  }

  /** @returns {Direction} */
  chosenDirection() {
    return { source: this.source.value, target: this.target.value };
  }

  /** Fill the choice of targets, and keep the languages. */
  chooseLanguages() {
    const { source, target, languages } = this;
    const from = languages.filter(({ code }) => source.value === AUTO || code === source.value);
    const codes = [...new Set(from.flatMap(({ targets }) => targets))];
    fillSelect(target, codes.map((code) => [code, this.nameOf(code)]), target.value || recall("target", ""));
    keep("source", source.value);
    keep("target", target.value);
    this.text.lang = source.value === AUTO ? "" : source.value;
    const first = from.find(({ targets }) => targets.includes(target.value))?.code ?? "";
    this.useDirection({ source: first, target: target.value });
    /** @type {HTMLButtonElement} */ (byId("swap")).disabled = !this.targetsOf(target.value).length;
  }

  /** Show the direction of a translation, which may have been detected. @param {Direction} pair */
  useDirection(pair) {
    this.direction = pair;
    if (this.target.value !== pair.target) this.target.value = pair.target;
    const detected = this.source.value === AUTO && this.panes.sentences.length > 0;
    byId("detected").textContent = detected ? `${this.nameOf(pair.source)} detected` : "";
    const model = this.modelOf(pair);
    byId("model").textContent = model ? `Model ${model.name}` : "";
    this.result.lang = pair.target;
    this.glossary.show(pair);
  }

  swap() {
    const back = this.targetsOf(this.target.value);
    const [from, to] = [this.target.value, back.includes(this.direction.source) ? this.direction.source : back[0]];
    if (this.panes.translation) this.text.value = this.panes.translation;
    this.source.value = from;
    this.chooseLanguages();
    this.target.value = to;
    this.chooseLanguages();
    this.changed();
  }

  /** Translate again, after a pause. */
  changed() {
    const { value } = this.text;
    const [length, limit] = [[...value].length, this.settings.charLimit];
    clearTimeout(this.timer);
    this.timer = 0;
    this.session.cancel();
    this.alternatives.close(false);
    this.message.hide();
    this.panes.follow();
    byId("count").textContent = `${length.toLocaleString("en")} / ${limit.toLocaleString("en")}`;
    byId("count").classList.toggle("wrong", length > limit);
    byId("clear").hidden = !value;
    if (!value.trim()) {
      this.panes.show([]);
      this.useDirection(this.direction);
      this.setBusy(false);
    } else if (length > limit) {
      this.setBusy(false, true);
      this.message.show(`The text is too long: at most ${limit.toLocaleString("en")} characters are allowed.`);
    } else this.timer = window.setTimeout(() => this.translate(), PAUSE);
  }

  async translate() {
    clearTimeout(this.timer);
    this.timer = 0;
    const { value } = this.text;
    if (!value.trim()) return;
    this.setBusy(true);
    try {
      await this.session.translate(value, this.chosenDirection(), this.bySentence.checked);
    } catch (error) {
      this.setBusy(false, true);
      this.message.fail(error);
    }
  }

  /** @param {Sentence[]} sentences @param {Direction} pair @param {boolean} complete */
  show(sentences, pair, complete) {
    this.panes.show(sentences);
    this.useDirection(pair);
    this.setBusy(!complete);
    this.message.hide();
    if (complete) announce(this.panes.translation, 1000);
  }

  /** @param {boolean} busy @param {boolean} stale whether the translation that is shown is of another text */
  setBusy(busy, stale = false) {
    byId("progress").hidden = !busy;
    this.result.setAttribute("aria-busy", String(busy));
    this.result.classList.toggle("stale", stale);
    const ready = !stale && this.panes.sentences.some(({ known }) => known);
    byId("empty").hidden = ready || Boolean(this.text.value.trim());
    const needed = { copy: ready, alternatives: ready, look: ready && Boolean(this.modelOf(this.direction)?.aligns) };
    for (const [id, on] of Object.entries(needed)) /** @type {HTMLButtonElement} */ (byId(id)).disabled = !on;
  }

  /** Replace the translation of a sentence. @param {number} number @param {Result} result */
  choose(number, result) {
    const { sentences } = this.panes;
    const one = sentences[number];
    this.session.learn(one.text, one.direction, result);
    this.panes.show(sentences.map((other) => (other.text === one.text ? { ...other, known: result } : other)));
    announce(result.text);
  }

  /** Open the attention of a sentence in a new tab. @param {number} number */
  async look(number) {
    const one = this.panes.sentences[number];
    if (!one?.known) return;
    this.alternatives.close(false);
    const tab = window.open("about:blank"); // at once: browsers block windows that come later
    try {
      const { url } = await askJson("api/v1/look",
        { text: one.text, ...one.direction, translation: one.known.text || undefined });
      const address = `${url.replace(/^\//, "")}#theme=${document.documentElement.dataset.theme}`;
      (tab ?? window).location.assign(new URL(address, document.baseURI));
    } catch (error) {
      tab?.close();
      this.message.fail(error);
    }
  }

  async copy() {
    try {
      await copyText(this.panes.translation);
    } catch {
      this.message.show("The browser does not allow copying. Select the translation and copy it.");
      return;
    }
    byId("copy").textContent = "Copied";
    announce("Copied");
    setTimeout(() => {
      byId("copy").textContent = "Copy";
    }, 1500);
  }
}

/** Ask the server what it serves, and show the translator or the completion. @param {Message} message */
async function start(message) {
  try {
    const [settings, languages] = await Promise.all([askJson("frontend/settings"), askJson("languages")]);
    /** @type {any[]} */
    const models = await askJson("api/v1/models"); // needs the key, if there is one
    const writers = models.filter(({ task }) => task === "completion").map(({ name }) => name);
    const completes = !languages.length || (writers.length > 0 && location.search === "?complete");
    const other = /** @type {HTMLAnchorElement} */ (byId("other"));
    if (languages.length && writers.length) other.hidden = false;
    if (completes) [other.href, other.textContent] = ["./", "Translate"];
    if (completes) startCompletion(writers, settings.charLimit, message);
    else new TranslatorPage(settings, languages, models, message).start();
  } catch (error) {
    message.fail(error);
  }
}

const message = new Message();
const keyBox = /** @type {HTMLInputElement} */ (byId("key"));
message.again = () => start(message);
startTheme(byId("theme"));
useKey(recall("key", ""));
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(keyBox.value.trim());
  keep("key", /** @type {HTMLInputElement} */ (byId("key-kept")).checked ? keyBox.value.trim() : undefined);
  byId("key-form").hidden = true;
  message.again();
});
start(message);
