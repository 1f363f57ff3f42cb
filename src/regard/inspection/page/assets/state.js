// The state of the page in its address, so that a link opens the same view. Knows no view.

/** @returns {State} */
export function readState() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

/** @param {State} state */
export function writeState(state) {
  const kept = Object.entries(state).filter(([, value]) => value !== "" && value !== undefined);
  const hash = "#" + new URLSearchParams(kept).toString();
  if (hash !== location.hash) history.replaceState(null, "", hash);
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
