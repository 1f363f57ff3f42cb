// A server of language models: one box with a text that the model continues, shown as it is written.

import { announce, byId, copyText, keep, make, recall } from "./browser.js";
import { ask, RequestError } from "./requests.js";

const LENGTHS = [16, 32, 64, 128, 256, 512];

/**
 * Show the box.
 * @param {string[]} models
 * @param {number} charLimit
 * @param {import("./browser.js").Message} message
 */
export function startCompletion(models, charLimit, message) {
  const room = byId("completer");
  const prompt = make("textarea", { id: "prompt", dir: "auto", rows: "4", placeholder: "Begin a text",
    "aria-describedby": "prompt-count" });
  const count = make("span", { id: "prompt-count", class: "quiet" });
  const model = make("select", { id: "language-model" }, ...models.map((name) => make("option", {}, name)));
  const kept = recall("completion", {});
  const length = make("select", { id: "length" }, ...LENGTHS.map((one) =>
    make("option", { value: one, selected: one === (kept.length ?? 64) }, `${one} tokens`)));
  const temperature = make("input", { id: "temperature", type: "range", min: "0", max: "1.5", step: "0.1" });
  temperature.value = String(kept.temperature ?? 0.8);
  const shown = make("span", {}, temperature.value);
  const go = make("button", { type: "submit", class: "strong" }, "Continue the text");
  const copy = make("button", { type: "button", class: "ghost", disabled: true }, "Copy");
  const result = make("div", { id: "completion", role: "group", "aria-label": "Completion", dir: "auto",
    tabindex: "0" });
  /** @type {AbortController | null} */
  let running = null;

  function counted() {
    count.textContent = `${[...prompt.value].length.toLocaleString("en")} / ${charLimit.toLocaleString("en")}`;
    count.classList.toggle("wrong", [...prompt.value].length > charLimit);
  }

  async function complete() {
    running?.abort();
    const own = (running = new AbortController());
    const text = prompt.value;
    keep("completion", { length: Number(length.value), temperature: Number(temperature.value) });
    message.hide();
    const written = make("span", { class: "written" });
    result.replaceChildren(make("span", { class: "given" }, text), written);
    go.textContent = "Stop";
    result.setAttribute("aria-busy", "true");
    try {
      const body = { model: model.value, prompt: text, max_tokens: Number(length.value),
        temperature: Number(temperature.value), stream: true };
      for await (const part of parts(await ask("v1/completions", body, own.signal))) written.append(part);
      announce(written.textContent ?? "", 300);
    } catch (error) {
      if (!own.signal.aborted) message.fail(error);
    } finally {
      if (running === own) {
        running = null;
        go.textContent = "Continue the text";
        result.removeAttribute("aria-busy");
        copy.disabled = !result.textContent;
      }
    }
  }

  const form = make("form", { class: "card completion", submit: (/** @type {Event} */ event) => {
    event.preventDefault();
    if (running) running.abort();
    else complete();
  } }, field("Text", prompt), count, make("div", { class: "row" },
    models.length > 1 && field("Model", model), field("Length", length),
    field("Temperature ", temperature, shown), go), result, make("div", { class: "foot" }, copy));
  room.replaceChildren(form);
  message.again = complete;
  temperature.addEventListener("input", () => {
    shown.textContent = temperature.value;
  });
  prompt.addEventListener("input", counted);
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    else if (event.key === "Escape") running?.abort();
  });
  copy.addEventListener("click", () => copyText(result.textContent ?? "").then(() => announce("Copied"), () =>
    message.show("The browser does not allow copying. Select the text and copy it.")));
  byId("title").textContent = "Continue a text";
  document.title = "Complete · regard";
  room.hidden = false;
  counted();
  prompt.focus();
}

/** A control with its label, which may show the value. @param {string} label @param {HTMLElement} box
 * @param {HTMLElement | null} value */
function field(label, box, value = null) {
  return make("div", { class: "field" }, make("label", { for: box.id }, label, value), box);
}

/**
 * The parts of a streamed completion.
 * @param {Response} response
 */
export async function* parts(response) {
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read().catch(() => {
      throw new RequestError(0, "The answer broke off.");
    });
    rest += decoder.decode(value, { stream: !done });
    const events = rest.split("\n\n");
    rest = events.pop() ?? "";
    for (const event of events) {
      const data = event.replace(/^data: ?/, "");
      if (data === "[DONE]") return;
      const table = JSON.parse(data);
      if (table.error) throw new RequestError(Number(table.error.code) || 500, String(table.error.message));
      yield String(table.choices[0]?.text ?? "");
    }
    if (done) throw new RequestError(0, "The answer broke off.");
  }
}
