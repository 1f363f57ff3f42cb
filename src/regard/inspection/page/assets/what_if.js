// The view "What if": another text, a forced prefix, another hypothesis, and what changes. It needs a server with the
// model; in a file it says how to start one.

import { alignmentMatrix, selectedAttention } from "./alignment.js";
import { comparisonCharts } from "./comparison.js";
import { choice, textButton, mutedText, notice, wordButtons, traceNumber } from "./controls.js";
import { fill, uniqueId, isolatedText, make } from "./dom.js";
import { headPlane, isSmall } from "./planes.js";
import { diffWords, hasWords, joinTokens, textOf, tokenUnits, wordUnits } from "./text.js";
import { pathTo } from "./tree.js";
import { sendRequest } from "./weights.js";

/** @type {View} */
export const whatIfView = {
  name: "what-if",
  title: "What if",
  open(app, room) {
    if (!app.page.asks) {
      fill(
        room,
        notice(
          "This page has no model. To try another text, a forced prefix or another hypothesis, run:"
        ),
        make("pre", {}, make("code", {}, 'regard look MODEL "your text"'))
      );
      return;
    }
    const number = traceNumber(app);
    const trace = app.traces[number];
    const [source, target] = sidesOf(trace);
    if (!source) {
      fill(room, notice("This trace has no text to change."));
      return;
    }
    const result = make("div", { class: "result", "aria-live": "polite" });
    fill(room, form(app, trace, number, source, target, result), result);
  }
};

/**
 * The side that is read, and the side that is written, where there is one.
 * @param {Trace} trace
 * @returns {[Side | null, Side | null]}
 */
function sidesOf(trace) {
  const written = trace.written ? trace.sides[trace.written.side] : null;
  const names = Object.keys(trace.sides).filter((name) => name !== trace.written?.side);
  return [trace.sides[names[0]] ?? written, names.length ? written : null];
}

/**
 * @param {App} app
 * @param {Trace} trace
 * @param {number} number
 * @param {Side} source
 * @param {Side | null} target
 * @param {HTMLElement} result
 */
function form(app, trace, number, source, target, result) {
  const ids = { text: uniqueId("text"), prefix: uniqueId("prefix"), beams: uniqueId("beams") };
  const text = make("textarea", { id: ids.text, rows: 3, dir: "auto", maxlength: 20000 });
  text.value = textOf(source);
  const prefix = make("input", { id: ids.prefix, type: "text", dir: "auto", maxlength: 4000, autocomplete: "off" });
  const beams = make("input", { id: ids.beams, type: "number", min: 1, max: 64, value: trace.search?.beams ?? 5 });
  const ends = trace.search?.best ?? [];
  let rank = app.state.choice ?? "0";
  const results = ends.map((end, i) => {
    const path = trace.search
      ? pathTo(trace.search, end).map((one) => /** @type {Search} */ (trace.search).nodes[one].token)
      : [];
    return /** @type {[string, string]} */ ([String(i), `${i + 1}. ${joinTokens(path)}`.slice(0, 90)]);
  });
  const button = make("button", { class: "strong" }, "Try it");
  const send = async () => {
    button.disabled = true;
    fill(result, mutedText("Waiting for the model …"));
    try {
      const answer = await sendRequest("translate.json", {
        trace: app.modelOf(number),
        text: text.value,
        ...(prefix.value ? { prefix: prefix.value } : {}),
        beams: beams.valueAsNumber || 1,
        ...(rank !== "0" ? { choice: Number(rank) } : {})
      });
      const added = app.addTrace(answer.trace, number);
      await compare(app, number, added, result);
    } catch (error) {
      fill(result, make("p", { class: "wrong", role: "alert" }, /** @type {Error} */ (error).message));
    }
    button.disabled = false;
  };
  const words = onlyWords(source);
  const output = target ? onlyWords(target) : [];
  return make(
    "form",
    {
      class: "what-if",
      submit: (/** @type {Event} */ event) => {
        event.preventDefault();
        void send();
      }
    },
    words.length
      ? wordButtons("Click a word to replace it", words, (i) => {
          const word = source.words?.[words[i].word ?? -1];
          if (!word) return;
          const characters = [...(source.text ?? "")];
          const before = characters.slice(0, word.start).join("").length;
          text.value = source.text ?? "";
          text.focus();
          text.setSelectionRange(before, before + characters.slice(word.start, word.end).join("").length);
        })
      : null,
    make("div", { class: "field" }, make("label", { for: ids.text }, "Text"), text),
    target && output.length
      ? wordButtons("Click a word of the output to force the output up to it", output, (i) => {
          const word = target.words?.[output[i].word ?? -1];
          if (word) prefix.value = [...(target.text ?? "")].slice(0, word.end).join("");
          prefix.focus();
        })
      : null,
    make("div", { class: "field" }, make("label", { for: ids.prefix }, "Forced prefix of the output"), prefix),
    make(
      "div",
      { class: "controls" },
      make("div", { class: "choice" }, make("label", { for: ids.beams }, "Beams"), beams),
      results.length > 1
        ? choice("Hypothesis", results, rank, (value) => {
            rank = value;
          })
        : null,
      button
    )
  );
}

/**
 * Text and attention before and after.
 * @param {App} app
 * @param {number} before
 * @param {number} after
 * @param {HTMLElement} room
 */
async function compare(app, before, after, room) {
  const traces = [app.traces[before], app.traces[after]];
  const lines = traces.map((trace) => {
    const [source, target] = sidesOf(trace);
    return [source, target].map((side) =>
      side ? (hasWords(side) ? onlyWords(side) : tokenUnits(side)).map((unit) => unit.name) : []
    );
  });
  const chosen = traces.map((trace) => selectedAttention(trace, app.state));
  const small = traces.every((trace, i) => isSmall(trace, trace.attentions[chosen[i].attention]));
  const units = app.state.units === "tokens" ? "tokens" : "words";
  const planes = await Promise.all(
    [before, after].map(async (number, i) =>
      small
        ? (await alignmentMatrix(app, number, chosen[i], units)).plane
        : headPlane(app, number, chosen[i].attention, Math.max(0, chosen[i].head))
    )
  );
  const maps = make("div");
  fill(
    room,
    make("h2", {}, "What changed"),
    ...[0, 1].map((side) =>
      lines[1][side].length ? marked(side ? "Output" : "Text", lines[0][side], lines[1][side]) : null
    ),
    small
      ? null
      : mutedText("These maps are too large to be shown by words: " + planes.map(({ name }) => name).join(", ")),
    maps,
    textButton("Open in all views", () =>
      app.navigate({ trace: String(after), view: "alignment", row: "", column: "" })
    )
  );
  const shape = small ? "linear" : "log";
  comparisonCharts(app, planes, ["Before", "After", "Difference: after − before"], { tall: 440, shape }, maps);
}

/** The words of a side, without what belongs to no word. @param {Side} side */
function onlyWords(side) {
  return hasWords(side) ? wordUnits(side).filter((unit) => unit.word !== null) : [];
}

/**
 * Two lists of words in one line: what is gone struck out, what is new underlined.
 * @param {string} label
 * @param {string[]} before
 * @param {string[]} after
 */
function marked(label, before, after) {
  const parts = diffWords(before, after).flatMap(({ kind, text }) => [
    kind === "same" ? isolatedText(text) : make(kind === "gone" ? "del" : "ins", {}, isolatedText(text)),
    " "
  ]);
  return make("p", { class: "changes", dir: "auto" }, make("span", { class: "caption" }, label), " ", ...parts);
}
