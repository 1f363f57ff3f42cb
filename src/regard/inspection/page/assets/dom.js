// HTML elements, and the state of the page in its address. Text goes in as text and never as markup, so that no token
// can become anything else.

/** @typedef {Node | string | null | undefined | false} Child */

/**
 * An element. Attributes that are functions listen ("click"), the others are set; false and null are left out.
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
  appendChildren(element, ...children);
  return element;
}

/**
 * @param {Element} element
 * @param {...Child} children
 */
function appendChildren(element, ...children) {
  for (const child of children) if (child !== null && child !== undefined && child !== false) element.append(child);
}

/**
 * @param {Element} element
 * @param {...Child} children
 */
export function fill(element, ...children) {
  element.replaceChildren();
  appendChildren(element, ...children);
}

/**
 * An element of a drawing.
 * @param {string} tag
 * @param {Record<string, string | number>} attributes
 */
export function makeSvg(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  return element;
}

/**
 * A piece of a user's text: its direction is its own and changes nothing around it.
 * @param {string} text
 */
export function isolatedText(text) {
  return make("bdi", { class: "token" }, text);
}

/**
 * A canvas of this size in CSS pixels, sharp on this screen.
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 */
export function sizeCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [wide, high] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== wide) canvas.width = wide;
  if (canvas.height !== high) canvas.height = high;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return pen;
}

/** Whether the screen is touched rather than pointed at: hints say "tap" then. */
export function isTouched() {
  return matchMedia("(hover: none)").matches;
}

let lastNumber = 0;

/** @param {string} prefix */
export function uniqueId(prefix) {
  return `${prefix}-${++lastNumber}`;
}

/** @returns {State} */
export function readState() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

/** @param {State} state */
export function writeState(state) {
  const kept = Object.entries(state).filter(([, value]) => value !== "" && value !== undefined);
  const hash = kept.length ? "#" + new URLSearchParams(kept).toString() : "";
  if (hash === location.hash) return;
  try {
    history.replaceState(null, "", hash || "#");
  } catch {
    // A page in a frame of a notebook has no address of its own to change; its state is kept in memory.
  }
}

/**
 * A whole number of the state between 0 and `count` − 1, or `otherwise`: an address may have been typed.
 * @param {string | undefined} text
 * @param {number} count
 * @param {number} otherwise
 */
export function pickNumber(text, count, otherwise) {
  const number = text !== undefined && /^\d{1,9}$/.test(text) ? Number(text) : -1;
  return number >= 0 && number < count ? number : otherwise;
}
