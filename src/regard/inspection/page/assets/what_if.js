// The view What if: another text, a forced beginning, another result of the search; and what changes. It needs a server
// that holds the model; in a file it says how to start one.

import { aligned, chosenAttention } from "./alignment.js";
import { ask } from "./source.js";
import { choice, pressable, quiet, remark, sentence, traceNumber } from "./pieces.js";
import { differences, hasWords, joined, textOf, tokenUnits, wordUnits } from "./text.js";
import { fill, freshId, isolated, make } from "./dom.js";
import { headPlane, isSmall } from "./planes.js";
import { pathTo } from "./tree_layout.js";
import { trio } from "./trio.js";

/** @type {View} */
export const whatIfView = {
  name: "what-if",
  title: "What if",
  open(desk, room) {
    if (!desk.page.asks) {
      fill(
        room,
        remark(
          "There is no model behind this page to ask. To try other words, a forced beginning or another result, " +
            "show the model itself:"
        ),
        make("pre", {}, make("code", {}, 'regard look MODEL "your text"'))
      );
      return;
    }
    const number = traceNumber(desk);
    const trace = desk.traces[number];
    const [source, target] = sidesOf(trace);
    if (!source) {
      fill(room, remark("This trace has no text to change."));
      return;
    }
    const result = make("div", { class: "result", "aria-live": "polite" });
    fill(room, form(desk, trace, number, source, target, result), result);
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
 * @param {Desk} desk
 * @param {Trace} trace
 * @param {number} number
 * @param {Side} source
 * @param {Side | null} target
 * @param {HTMLElement} result
 */
function form(desk, trace, number, source, target, result) {
  const ids = { text: freshId("text"), prefix: freshId("prefix"), beams: freshId("beams") };
  const text = make("textarea", { id: ids.text, rows: 3, dir: "auto", maxlength: 20000 });
  text.value = textOf(source);
  const prefix = make("input", { id: ids.prefix, type: "text", dir: "auto", maxlength: 4000, autocomplete: "off" });
  const beams = make("input", { id: ids.beams, type: "number", min: 1, max: 64, value: trace.search?.beams ?? 5 });
  const ends = trace.search?.best ?? [];
  let rank = desk.state.choice ?? "0";
  const results = ends.map((end, i) => {
    const path = trace.search
      ? pathTo(trace.search, end).map((one) => /** @type {Search} */ (trace.search).nodes[one].token)
      : [];
    return /** @type {[string, string]} */ ([String(i), `${i + 1}. ${joined(path)}`.slice(0, 90)]);
  });
  const button = make("button", { class: "strong" }, "Try it");
  const send = async () => {
    button.disabled = true;
    fill(result, quiet("Waiting for the model …"));
    try {
      const answer = await ask("translate.json", {
        trace: desk.modelOf(number),
        text: text.value,
        ...(prefix.value ? { prefix: prefix.value } : {}),
        beams: beams.valueAsNumber || 1,
        ...(rank !== "0" ? { choice: Number(rank) } : {})
      });
      const added = desk.add(answer.trace, number);
      await compare(desk, number, added, result);
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
      ? sentence("Press a word to type another in its place", words, (i) => {
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
      ? sentence("Press a word of the output to force everything up to it", output, (i) => {
          const word = target.words?.[output[i].word ?? -1];
          if (word) prefix.value = [...(target.text ?? "")].slice(0, word.end).join("");
          prefix.focus();
        })
      : null,
    make("div", { class: "field" }, make("label", { for: ids.prefix }, "The output begins with"), prefix),
    make(
      "div",
      { class: "controls" },
      make("div", { class: "choice" }, make("label", { for: ids.beams }, "Beams"), beams),
      results.length > 1
        ? choice("Result of the search", results, rank, (value) => {
            rank = value;
          })
        : null,
      button
    )
  );
}

/**
 * Text and attention before and after.
 * @param {Desk} desk
 * @param {number} before
 * @param {number} after
 * @param {HTMLElement} room
 */
async function compare(desk, before, after, room) {
  const traces = [desk.traces[before], desk.traces[after]];
  const lines = traces.map((trace) => {
    const [source, target] = sidesOf(trace);
    return [source, target].map((side) =>
      side ? (hasWords(side) ? onlyWords(side) : tokenUnits(side)).map((unit) => unit.name) : []
    );
  });
  const chosen = traces.map((trace) => chosenAttention(trace, desk.state));
  const small = traces.every((trace, i) => isSmall(trace, trace.attentions[chosen[i].attention]));
  const units = desk.state.units === "tokens" ? "tokens" : "words";
  const planes = await Promise.all(
    [before, after].map(async (number, i) =>
      small
        ? (await aligned(desk, number, chosen[i], units)).plane
        : headPlane(desk, number, chosen[i].attention, Math.max(0, chosen[i].head))
    )
  );
  const maps = make("div");
  fill(
    room,
    make("h2", {}, "What changed"),
    ...[0, 1].map((side) =>
      lines[1][side].length ? marked(side ? "Output" : "Text", lines[0][side], lines[1][side]) : null
    ),
    small ? null : quiet("These maps are too large to be shown by words: " + planes.map(({ name }) => name).join(", ")),
    maps,
    pressable("Look at it in all views", () =>
      desk.go({ trace: String(after), view: "alignment", row: "", column: "" })
    )
  );
  const shape = small ? "linear" : "log";
  trio(desk, planes, ["Before", "After", "Difference: after − before"], { tall: 440, shape }, maps);
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
  const parts = differences(before, after).flatMap(({ kind, text }) => [
    kind === "same" ? isolated(text) : make(kind === "gone" ? "del" : "ins", {}, isolated(text)),
    " "
  ]);
  return make("p", { class: "changes", dir: "auto" }, make("span", { class: "caption" }, label), " ", ...parts);
}
