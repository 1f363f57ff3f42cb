// Influence of groups: in a long text neighbouring words are left out together. On a served page a click on a group
// asks the model for its words; a file names the command that opens such a page.

import { textButton } from "./controls.js";
import { make } from "./dom.js";
import { plural } from "./numbers.js";
import { sendRequest } from "./weights.js";

/**
 * Influence whose columns are replaced by finer ones, where there are some.
 * @param {Influence | null | undefined} influence
 * @param {Influence} finer
 * @returns {Influence}
 */
export function mergeInfluence(influence, finer) {
  if (!influence) return finer;
  const known = new Set(finer.tokens.flat());
  const kept = [...influence.tokens.keys()].filter((c) => !influence.tokens[c].every((token) => known.has(token)));
  const order = [
    ...kept.map((column) => ({ from: influence, column })),
    ...finer.tokens.map((_, column) => ({ from: finer, column }))
  ].sort((a, b) => a.from.tokens[a.column][0] - b.from.tokens[b.column][0]);
  return {
    ...influence,
    tokens: order.map(({ from, column }) => from.tokens[column]),
    values: influence.values.map((_, row) => order.map(({ from, column }) => from.values[row]?.[column] ?? null))
  };
}

/**
 * Ask the model for the influence of some words, and put it into the trace.
 * @param {App} app
 * @param {number} number of the trace
 * @param {number[]} [words] by their numbers; all, in groups if there are many, where they are not given
 */
export async function leaveOut(app, number, words) {
  const trace = app.traces[number];
  const answer = await sendRequest("influence.json", { trace: trace.number ?? number, ...(words ? { words } : {}) });
  trace.influence = mergeInfluence(words && trace.influence, answer.influence);
}

/**
 * The numbers of the words of a group, for `leaveOut`.
 * @param {Unit[]} units
 * @param {number[]} group
 */
export function groupWords(units, group) {
  return group.flatMap((j) => units[j].word ?? []);
}

/**
 * The text of a group.
 * @param {Side} side
 * @param {Unit[]} units
 * @param {number[]} group neighbours
 */
export function groupText(side, units, group) {
  const [first, last] = [units[group[0]], units[group[group.length - 1]]].map(({ word }) => side.words?.[word ?? -1]);
  if (!first || !last) return group.map((j) => units[j].name).join(" ");
  return [...(side.text ?? "")].slice(first.start, last.end).join("");
}

/**
 * What to do with a group, for its tooltip.
 * @param {Trace} trace
 * @param {number} count of its words
 */
export function groupHint(trace, count) {
  const together = `${plural(count, "word")}, left out together. `;
  if (trace.refines) return together + "Click to leave out each of them alone.";
  return `${together}To leave out each of them alone, run: regard look ${trace.model || "MODEL"} TEXT, and click here.`;
}

/**
 * What to do where a trace has no influence: ask the model for it, or run a command.
 * @param {App} app
 * @param {number} number
 * @returns {(Node | string)[]}
 */
export function missingInfluence(app, number) {
  const trace = app.traces[number];
  if (!trace.refines && app.page.asks) return []; // this kind of model has none
  if (!trace.refines) {
    const reads = !trace.written && trace.attentions.every(({ name }) => name.startsWith("encoder."));
    return [
      "“What mattered” is not in this trace. To see it: ",
      make("code", {}, "regard look MODEL TEXT"),
      reads ? ". A masked model needs a blank, ___, in the text." : ""
    ];
  }
  const button = textButton("Compute what mattered", () => {
    button.disabled = true;
    button.textContent = "Leaving out words …";
    leaveOut(app, number).then(
      () => app.navigate({ show: "mattered" }),
      (error) => button.replaceWith(make("span", { class: "wrong", role: "alert" }, error.message))
    );
  });
  return [button];
}
