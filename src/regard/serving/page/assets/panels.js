// Below the panes: the glossary, kept for each direction, and files, which are translated one after the other.

import { announce, byId, keep, make, recall } from "./browser.js";
import { errorOf, keyHeader, RequestError } from "./requests.js";

/** @typedef {import("./requests.js").Direction} Direction */

const MAX_TERMS = 1000;

/** Terms and their translations, in a table. */
export class Glossary {
  /** @param {() => void} changed */
  constructor(changed) {
    this.changed = changed;
    this.name = "";
    /** @type {[string, string][]} */
    this.rows = [];
    byId("add-term").addEventListener("click", () => this.add());
  }

  /** The entries of a direction as the server wants them; undefined if there are none.
   * @param {Direction} direction @returns {Record<string, string | string[]> | undefined} */
  entries(direction) {
    /** @type {Map<string, string[]>} */
    const found = new Map();
    for (const [term, translation] of this.read(nameOf(direction)).map((row) => row.map((one) => one.trim()))) {
      if (term && translation) found.set(term, [...new Set([...(found.get(term) ?? []), translation])]);
    }
    return found.size ? Object.fromEntries(found) : undefined;
  }

  /** @param {string} name @returns {[string, string][]} */
  read(name) {
    if (name === this.name) return this.rows;
    const kept = recall(name, []);
    const isRow = (/** @type {unknown} */ row) =>
      Array.isArray(row) && row.length === 2 && row.every((one) => typeof one === "string");
    return Array.isArray(kept) ? kept.filter(isRow).slice(0, MAX_TERMS) : [];
  }

  /** Show the glossary of a direction. @param {Direction} direction */
  show(direction) {
    const name = nameOf(direction);
    if (name === this.name) return;
    this.rows = this.read(name);
    this.name = name;
    this.draw();
  }

  draw() {
    byId("terms").replaceChildren(...this.rows.map((row, number) => {
      const field = (/** @type {number} */ side, /** @type {string} */ label) => {
        const box = make("input", { type: "text", dir: "auto", autocomplete: "off",
          "aria-label": `${label} ${number + 1}`, input: () => {
            row[side] = box.value;
            this.save();
          },
          keydown: (/** @type {KeyboardEvent} */ event) => {
            if (event.key === "Enter" && !event.isComposing) this.add();
          } });
        box.value = row[side];
        return make("td", {}, box);
      };
      const remove = make("button", { type: "button", class: "icon-button", title: "Remove",
        "aria-label": `Remove term ${number + 1}`, click: () => {
          this.rows.splice(number, 1);
          this.draw();
          this.save();
          byId("add-term").focus();
        } }, "×");
      return make("tr", {}, field(0, "Term"), field(1, "Translation"), make("td", {}, remove));
    }));
    this.count();
  }

  add() {
    if (this.rows.length >= MAX_TERMS) return;
    this.rows.push(["", ""]);
    this.draw();
    /** @type {HTMLElement | null} */ (document.querySelector("#terms tr:last-child input"))?.focus();
  }

  save() {
    const filled = this.rows.filter((row) => row.some((one) => one.trim()));
    keep(this.name, filled.length ? filled : undefined);
    this.count();
    this.changed();
  }

  count() {
    const count = this.rows.filter((row) => row.every((one) => one.trim())).length;
    byId("glossary-count").textContent = count ? String(count) : "";
    document.querySelector("#glossary table")?.toggleAttribute("hidden", !this.rows.length);
  }
}

/** @param {Direction} direction */
function nameOf({ source, target }) {
  return `glossary.${source}-${target}`;
}

/** Files that are uploaded, translated and offered for download. */
export class Files {
  /**
   * @param {{ supportedFilesFormat: string[], fileSizeLimit: number }} settings
   * @param {() => Direction} direction
   */
  constructor(settings, direction) {
    this.settings = settings;
    this.direction = direction;
    /** @type {Promise<void>} */
    this.last = Promise.resolve();
    const box = /** @type {HTMLInputElement} */ (byId("file"));
    const formats = settings.supportedFilesFormat;
    byId("file-hint").textContent = `Drop files anywhere on this page: ${formats.join(", ")}; also compressed as ` +
      `.gz. Up to ${size(settings.fileSizeLimit)} each.`;
    box.accept = [...formats, ".gz"].join(",");
    byId("choose-file").addEventListener("click", () => box.click());
    box.addEventListener("change", () => {
      this.add(box.files);
      box.value = "";
    });
    this.listen();
  }

  listen() {
    const sign = byId("drop");
    const hasFiles = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files") ?? false;
    addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      sign.hidden = false;
    });
    addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) sign.hidden = true;
    });
    addEventListener("drop", (event) => {
      sign.hidden = true;
      if (!hasFiles(event)) return;
      event.preventDefault();
      this.add(event.dataTransfer?.files ?? null);
    });
  }

  /** @param {FileList | null} files */
  add(files) {
    for (const file of files ?? []) {
      const status = make("span", { class: "quiet" }, "Waiting");
      const bar = make("progress", { max: "1", "aria-label": `Progress of ${file.name}` });
      const controller = new AbortController();
      const cancel = make("button", { type: "button", class: "ghost", "aria-label": `Cancel ${file.name}`,
        click: () => controller.abort() }, "Cancel");
      const row = make("li", {}, make("bdi", { class: "file-name" }, file.name), status, bar, cancel);
      byId("file-list").append(row);
      const direction = this.direction();
      this.last = this.last.then(() => this.translate(file, direction, { status, bar, cancel }, controller.signal));
    }
    if (files?.length) /** @type {HTMLDetailsElement} */ (byId("files")).open = true;
  }

  /**
   * @param {File} file
   * @param {Direction} direction
   * @param {{ status: HTMLElement, bar: HTMLProgressElement, cancel: HTMLElement }} parts
   * @param {AbortSignal} signal
   */
  async translate(file, direction, { status, bar, cancel }, signal) {
    const tell = (/** @type {string} */ text) => {
      status.textContent = text;
    };
    try {
      const limit = this.settings.fileSizeLimit;
      if (file.size > limit) throw new RequestError(413, `Larger than ${size(limit)}.`);
      tell("Sending");
      const url = await upload(file, direction, signal, (share) => {
        if (share < 1) bar.value = share;
        else bar.removeAttribute("value");
        tell(share < 1 ? "Sending" : "Translating");
      });
      const path = url.slice(url.indexOf("download_file/")); // the server may stand behind a proxy
      const name = decodeURIComponent(path.slice(path.lastIndexOf("/") + 1));
      const link = make("a", { class: "button-link", href: path, download: name, click: () => {
        setTimeout(() => link.replaceWith(make("span", { class: "quiet" }, "Downloaded")), 500); // it can be taken once
      } }, "Download");
      link.setAttribute("aria-label", `Download ${name}`);
      tell("Ready");
      announce(`${name} is ready`);
      cancel.replaceWith(link);
    } catch (error) {
      tell(signal.aborted ? "Cancelled" : error instanceof RequestError ? error.advice : String(error));
      status.classList.toggle("wrong", !signal.aborted);
      cancel.remove();
    }
    bar.remove();
  }
}

/** @param {number} bytes */
function size(bytes) {
  return bytes < 1 << 20 ? `${Math.round(bytes / 1024)} KiB` : `${Math.round(bytes / (1 << 20))} MiB`;
}

/**
 * Send a file, and return the address of its translation. Only XMLHttpRequest tells how much was sent.
 * @param {File} file
 * @param {Direction} direction
 * @param {AbortSignal} signal
 * @param {(share: number) => void} sent
 * @returns {Promise<string>}
 */
function upload(file, { source, target }, signal, sent) {
  const form = new FormData();
  for (const [name, value] of Object.entries({ source, target })) form.append(name, value);
  form.append("file", file);
  return new Promise((resolve, reject) => {
    if (signal.aborted) throw new Error("Cancelled");
    const request = new XMLHttpRequest();
    request.open("POST", "translate_file");
    for (const [name, value] of Object.entries(keyHeader())) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", ({ loaded, total }) => sent(total ? loaded / total : 1));
    request.upload.addEventListener("load", () => sent(1));
    request.addEventListener("load", () => {
      if (request.status === 200) resolve(JSON.parse(request.responseText).translatedFileUrl);
      else reject(errorOf(request.status, request.responseText, request.getResponseHeader("Retry-After")));
    });
    request.addEventListener("error", () => reject(new RequestError(0, "The server does not answer.")));
    request.addEventListener("abort", () => reject(new Error("Cancelled")));
    signal.addEventListener("abort", () => request.abort());
    request.send(form);
  });
}
