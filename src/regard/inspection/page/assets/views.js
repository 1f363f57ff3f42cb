// What the page can show: its views, and the forms of the view "Read". Each module adds its own when it is read, so
// that a page contains only the modules that it can use (OPTIONAL_MODULES in document.py).

/** @type {View[]} */
export const VIEWS = [];

/**
 * Other forms of the view "Read" than two lines with ribbons: `fits` gets whether ribbons are possible.
 * @type {{fits: (trace: Trace, ribbons: boolean) => boolean,
 *   open: (app: App, number: number, room: HTMLElement) => void}[]}
 */
export const READINGS = [];

/** Whether this page has a view of this name. @param {string} name */
export function hasView(name) {
  return VIEWS.some((view) => view.name === name);
}
