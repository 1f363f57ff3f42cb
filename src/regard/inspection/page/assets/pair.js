// The view Two side by side: two heads, attentions or traces, and their difference where they have the same shape.

import { attentionChoice, choice, headChoice, scaleChoice } from "./pieces.js";
import { headPlane } from "./planes.js";
import { fill, make } from "./dom.js";
import { pickNumber } from "./state.js";
import { trio } from "./trio.js";
import { usualAttention } from "./alignment.js";

/**
 * What one half shows, from the state: the second half has keys that end in 2.
 * @param {Desk} desk
 * @param {"" | "2"} half
 */
function halfOf(desk, half) {
  const { state, traces } = desk;
  const first = half === "" ? null : halfOf(desk, "");
  const trace = pickNumber(
    state["trace" + half],
    traces.length,
    first ? Math.min(traces.length - 1, first.trace + 1) : 0
  );
  const attentions = traces[trace].attentions;
  const usual = first && first.attention < attentions.length ? first.attention : usualAttention(traces[trace]);
  const attention = pickNumber(state["attention" + half], attentions.length, usual);
  const beside =
    first && first.trace === trace && first.attention === attention
      ? (first.head + 1) % attentions[attention].heads
      : (first?.head ?? 0);
  const head = pickNumber(
    state["head" + half],
    attentions[attention].heads,
    Math.min(beside, attentions[attention].heads - 1)
  );
  return { trace, attention, head };
}

/**
 * @param {Desk} desk
 * @param {"" | "2"} half
 * @param {string} title
 */
function picker(desk, half, title) {
  const chosen = halfOf(desk, half);
  const names = desk.traces.map((trace, i) => /** @type {[string, string]} */ ([String(i), nameOf(trace, i)]));
  return make(
    "fieldset",
    { class: "controls" },
    make("legend", {}, title),
    desk.traces.length > 1
      ? choice("Trace", names, String(chosen.trace), (value) =>
          desk.go({ ["trace" + half]: value, ["attention" + half]: "", ["head" + half]: "" })
        )
      : null,
    attentionChoice(desk, chosen.trace, String(chosen.attention), (value) =>
      desk.go({ ["attention" + half]: value, ["head" + half]: "" })
    ),
    headChoice(desk.traces[chosen.trace].attentions[chosen.attention], String(chosen.head), (value) =>
      desk.go({ ["head" + half]: value })
    )
  );
}

/**
 * @param {Trace} trace
 * @param {number} number
 */
export function nameOf(trace, number) {
  return `${number + 1}: ${[trace.model, trace.title].filter(Boolean).join(" · ") || "trace"}`.slice(0, 80);
}

/** @type {View} */
export const pairView = {
  name: "pair",
  title: "Two side by side",
  open(desk, room) {
    const halves = [halfOf(desk, ""), halfOf(desk, "2")];
    const planes = halves.map(({ trace, attention, head }) => headPlane(desk, trace, attention, head));
    const { element, shape, whole } = scaleChoice(
      desk,
      planes[0].rows * planes[0].columns > 1 << 16 ? "log" : "linear"
    );
    const models = halves.map(({ trace }) => desk.traces[trace].model);
    const titles = planes.map(({ name }, i) => {
      if (desk.traces.length < 2) return name;
      return `${models[0] !== models[1] && models[i] ? models[i] : `Trace ${halves[i].trace + 1}`}: ${name}`;
    });
    const charts = make("div");
    const pickers = make("div", { class: "pickers" }, picker(desk, "", "First"), picker(desk, "2", "Second"), element);
    fill(room, make("h2", { class: "unseen" }, "Two side by side"), pickers, charts);
    trio(desk, planes, [...titles, "Difference: second − first"], { shape, whole, tall: 520 }, charts);
  }
};
