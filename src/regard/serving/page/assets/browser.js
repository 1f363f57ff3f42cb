// The browser: elements, choices that are kept, the theme, the clipboard, and what a screen reader says. User text goes
// in as text and never as markup.

import { RequestError } from "./requests.js";

const MAX_RETRIES = 5;

/** @typedef {Node | string | null | undefined | false} Child */

/**
 * The element of index.html with this id.
 * @template {HTMLElement} [Kind=HTMLElement]
 * @param {string} id
 * @returns {Kind}
 */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`index.html has no element ${id}`);
  return /** @type {Kind} */ (found);
}

/**
 * A new element. Attributes that are functions listen ("click"), the others are set; false and null are left out.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, unknown>} attributes
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (typeof value === "function") element.addEventListener(name, /** @type {EventListener} */ (value));
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) if (child !== null && child !== undefined && child !== false) element.append(child);
  return element;
}

/** @type {Map<string, string>} */
const unkept = new Map();

/**
 * A choice that was kept. Where the browser denies storage, choices last as long as the page.
 * @param {string} name
 * @param {unknown} otherwise
 * @returns {any}
 */
export function recall(name, otherwise) {
  let text = unkept.get(name) ?? null;
  try {
    text ??= localStorage.getItem(`regard.${name}`);
  } catch {
    // storage is denied
  }
  try {
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

/**
 * Keep a choice; undefined removes it.
 * @param {string} name
 * @param {unknown} value
 */
export function keep(name, value) {
  unkept.delete(name);
  try {
    if (value === undefined) localStorage.removeItem(`regard.${name}`);
    else localStorage.setItem(`regard.${name}`, JSON.stringify(value));
  } catch {
    if (value !== undefined) unkept.set(name, JSON.stringify(value));
  }
}

/** Follow the system's theme, or the one that was chosen with this button. @param {HTMLElement} button */
export function startTheme(button) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const show = () => {
    const chosen = recall("theme", null);
    const dark = chosen === "dark" || (chosen !== "light" && system.matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    button.textContent = dark ? "Light" : "Dark";
  };
  button.addEventListener("click", () => {
    const now = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    keep("theme", now === (system.matches ? "dark" : "light") ? undefined : now);
    show();
  });
  system.addEventListener("change", show);
  show();
}

/**
 * Put a text into the clipboard. Over plain HTTP from another machine the modern interface is missing.
 * @param {string} text
 */
export async function copyText(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const box = make("textarea", { class: "visually-hidden", "aria-hidden": "true" });
  const before = document.activeElement;
  box.value = text;
  document.body.append(box);
  box.select();
  const done = document.execCommand("copy");
  box.remove();
  if (before instanceof HTMLElement) before.focus();
  if (!done) throw new Error("The browser does not allow copying.");
}

let saying = 0;

/**
 * Let a screen reader say something, once it has not changed for a while.
 * @param {string} text
 * @param {number} pause in milliseconds
 */
export function announce(text, pause = 150) {
  clearTimeout(saying);
  saying = window.setTimeout(() => {
    byId("live").textContent = text;
  }, pause);
}

/**
 * The name of a language in English.
 * @param {string} code
 * @param {string} name what the server calls it, if it does
 */
export function languageName(code, name = "") {
  if (name) return name;
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(code) ?? code;
  } catch {
    return code; // not the code of a language
  }
}

/** Messages about the translation, with a button to try again, or a countdown to the next try. */
export class Message {
  constructor() {
    /** What is to be done again. */
    this.again = () => {};
    this.timer = 0;
    this.tries = 0;
    byId("retry").addEventListener("click", () => this.retry());
    addEventListener("online", () => {
      if (!byId("message").hidden) this.retry();
    });
  }

  retry() {
    this.hide(this.tries);
    this.again();
  }

  /** @param {string} text @param {boolean} again whether trying again may help */
  show(text, again = false) {
    clearTimeout(this.timer);
    byId("message-text").textContent = text;
    byId("message-wait").textContent = "";
    byId("retry").hidden = !again;
    byId("message").hidden = false;
  }

  /** @param {number} tries */
  hide(tries = 0) {
    clearTimeout(this.timer);
    this.tries = tries;
    byId("message").hidden = true;
  }

  /** @param {unknown} error */
  fail(error) {
    if (!(error instanceof RequestError)) throw error;
    if (error.status === 401 || error.status === 403) {
      byId("key-hint").textContent = error.message;
      byId("key-form").hidden = false;
      byId("key").focus();
      return;
    }
    if (error.status === 429 && this.tries < MAX_RETRIES) this.count(error.advice, Math.max(1, error.retryAfter));
    else this.show(error.advice, [0, 429].includes(error.status) || error.status >= 500);
  }

  /** @param {string} text @param {number} seconds until the next try */
  count(text, seconds) {
    if (byId("message").hidden || byId("message-text").textContent !== text) this.show(text, true);
    byId("message-wait").textContent = `Trying again in ${seconds} s.`; // not read out every second
    this.timer = window.setTimeout(() => {
      if (seconds > 1) this.count(text, seconds - 1);
      else {
        this.tries += 1;
        this.retry();
      }
    }, 1000);
  }
}
