// The view "Try": edit a word in place, force a beginning of the output, or take another hypothesis, and see what
// changes: the new output above the old one, and both maps by the words that they share. Only pages of a server with a
// model have it.

import { alignmentMatrix, selectedAttention } from "./alignment.js";
import { comparisonCharts } from "./comparison.js";
import { choice, failure, mutedText, notice, textButton, traceNumber } from "./controls.js";
import { fill, isolatedText, make, uniqueId } from "./dom.js";
import { headPlane, isSmall } from "./planes.js";
import { pathTo, tokensOf } from "./search.js";
import { diffWords, directionOf, hasWords, joinTokens, textOf, tokenUnits, wordUnits } from "./text.js";
import { VIEWS } from "./views.js";
import { sendRequest } from "./weights.js";

VIEWS.push({
  name: "try",
  title: "Try",
  open(app, room) {
    const number = traceNumber(app);
    const trace = app.traces[number];
    const [source, target] = sidesOf(trace);
    if (!source) {
      fill(room, notice("This trace has no text to change."));
      return;
    }
    const result = make("div", { class: "result", "aria-live": "polite" });
    const asked = trial(app, trace, number, source, target, result);
    fill(room, asked.form, result);
    const at = Number.parseInt(app.state.edit ?? "", 10);
    if (at >= 0) asked.edit(at);
    app.updateState({ edit: "" });
    if (app.state.send) {
      app.updateState({ send: "" });
      void asked.send();
    }
  }
});

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
 * The form: the text with words to edit, the beginning of the output, beams, and the hypothesis.
 * @param {App} app
 * @param {Trace} trace
 * @param {number} number
 * @param {Side} source
 * @param {Side | null} target
 * @param {HTMLElement} result
 */
function trial(app, trace, number, source, target, result) {
  const ids = { text: uniqueId("text"), prefix: uniqueId("prefix"), beams: uniqueId("beams") };
  const given = textOf(source);
  const text = make("textarea", { id: ids.text, rows: 2, dir: directionOf(given), maxlength: 20000 });
  text.value = given;
  const prefix = make("input", {
    id: ids.prefix,
    type: "text",
    dir: target ? directionOf(textOf(target)) : "ltr",
    maxlength: 4000,
    autocomplete: "off"
  });
  prefix.value = app.state.prefix ?? "";
  const beams = make("input", { id: ids.beams, type: "number", min: 1, max: 64, value: trace.search?.beams ?? 5 });
  const search = trace.search;
  let rank = app.state.choice ?? "0";
  const results = (search?.best ?? []).map((end, i) => {
    const tokens = search ? tokensOf(search, pathTo(search, end)) : [];
    return /** @type {[string, string]} */ ([String(i), `${i + 1}. ${joinTokens(tokens)}`.slice(0, 90)]);
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
      fill(result, failure(/** @type {Error} */ (error)));
    }
    button.disabled = false;
  };
  const words = editableWords(source, text, () => void send());
  const form = make(
    "form",
    {
      class: "try-form",
      submit: (/** @type {Event} */ event) => {
        event.preventDefault();
        void send();
      }
    },
    words ? make("p", { class: "caption" }, "Click a word to edit it, then press Enter") : null,
    words?.line ?? null,
    make(
      "details",
      { class: "more", open: !words || Boolean(prefix.value) },
      make("summary", {}, "The whole text, a forced prefix, beams, another hypothesis"),
      make("div", { class: "field" }, make("label", { for: ids.text }, "Text"), text),
      make("div", { class: "field" }, make("label", { for: ids.prefix }, "Forced prefix of the output"), prefix),
      make(
        "div",
        { class: "controls" },
        make("div", { class: "choice" }, make("label", { for: ids.beams }, "Beams"), beams),
        results.length > 1
          ? choice("Hypothesis", results, rank, (value) => {
              rank = value;
            })
          : null
      )
    ),
    make("div", {}, button)
  );
  return { form, send, edit: (/** @type {number} */ at) => words?.edit(at) };
}

/**
 * The words of a text; a click turns one into a field in its place.
 * @param {Side} side
 * @param {HTMLTextAreaElement} text that follows every change
 * @param {() => void} send
 */
function editableWords(side, text, send) {
  const units = onlyWords(side);
  if (!units.length) return null;
  const characters = [...(side.text ?? "")];
  const spans = units.map((unit) => /** @type {Word} */ (side.words?.[unit.word ?? -1]));
  const changed = spans.map(({ start, end }) => characters.slice(start, end).join(""));
  const write = () => {
    let [out, at] = ["", 0];
    spans.forEach(({ start, end }, i) => {
      out += characters.slice(at, start).join("") + changed[i];
      at = end;
    });
    text.value = out + characters.slice(at).join("");
  };
  /** @param {number} at */
  const edit = (at) => {
    const button = line.querySelectorAll(".word")[at];
    if (!(button instanceof HTMLButtonElement)) return;
    const label = `Instead of ${units[at].name}`;
    const field = make("input", { type: "text", class: "in-place", "aria-label": label, maxlength: 200 });
    field.value = changed[at];
    field.size = Math.max(3, [...changed[at]].length + 1);
    let open = true;
    const done = () => {
      if (!open) return; // a field that is taken out loses the focus once more
      open = false;
      fill(button, isolatedText(changed[at] || "∅"));
      field.replaceWith(button);
    };
    field.addEventListener("input", () => {
      changed[at] = field.value;
      field.size = Math.max(3, [...field.value].length + 1);
      write();
    });
    field.addEventListener("blur", done);
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      done();
      button.focus();
      if (event.key === "Enter") send();
    });
    button.replaceWith(field);
    field.focus();
    field.select();
  };
  const line = make(
    "div",
    { class: "words", role: "group", "aria-label": "Text, word by word", dir: directionOf(side.text ?? "") },
    ...units.map((unit, i) =>
      make("button", { type: "button", class: "word", click: () => edit(i) }, isolatedText(unit.name))
    )
  );
  return { line, edit };
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
    return [source, target].map((side) => (side ? wordsOf(side) : []));
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
    ...[1, 0].map((side) =>
      lines[1][side].length ? changedLine(side ? "Output" : "Text", lines[0][side], lines[1][side]) : null
    ),
    small
      ? null
      : mutedText("These maps are too large to be shown by words: " + planes.map(({ name }) => name).join(", ")),
    maps,
    textButton("Read the new one", () =>
      app.navigate({ trace: String(after), view: "read", row: "", column: "", word: "", prefix: "" })
    )
  );
  const shape = small ? "linear" : "log";
  comparisonCharts(app, planes, ["Before", "After", "Difference: after − before"], { tall: 440, shape }, maps);
}

/**
 * The words of a side, or its tokens, each with the space that follows it.
 * @param {Side} side
 * @returns {Spaced[]}
 */
function wordsOf(side) {
  const units = hasWords(side) ? onlyWords(side) : tokenUnits(side);
  return units.map(({ name, word }, i) => {
    const [own, next] = [word, units[i + 1]?.word].map((number) => side.words?.[number ?? -1]);
    return { name, space: own && next && own.end === next.start ? "" : " " };
  });
}

/** The words of a side, without what belongs to no word. @param {Side} side */
function onlyWords(side) {
  return hasWords(side) ? wordUnits(side).filter((unit) => unit.word !== null) : [];
}

/**
 * The new line above the old one: what is new underlined, what is gone struck out.
 * @typedef {{name: string, space: string}} Spaced
 * @param {string} label
 * @param {Spaced[]} before
 * @param {Spaced[]} after
 */
function changedLine(label, before, after) {
  const names = [before, after].map((words) => words.map(({ name }) => name));
  const parts = diffWords(names[0], names[1]);
  /** @param {"gone" | "new"} kind @param {"ins" | "del"} tag @param {Spaced[]} words of this line */
  const line = (kind, tag, words) =>
    parts
      .filter((part) => part.kind === "same" || part.kind === kind)
      .flatMap((part, i) => {
        const word = isolatedText(part.text);
        return [part.kind === "same" ? word : make(tag, {}, word), words[i].space];
      });
  const same = parts.every((part) => part.kind === "same");
  return make(
    "div",
    { class: "changes" },
    make("span", { class: "caption" }, same ? `${label} (unchanged)` : label),
    make("p", { class: "after", dir: directionOf(names[1].join(" ")) }, ...line("new", "ins", after)),
    same ? null : make("p", { class: "before", dir: directionOf(names[0].join(" ")) }, ...line("gone", "del", before))
  );
}
