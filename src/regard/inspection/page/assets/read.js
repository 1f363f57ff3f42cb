// The view "Read": the answer in words, then two lines of words with ribbons: what mattered, where the model looked, or
// both; beside them all heads, and the results of the search with the number that they are ranked by.

import { openMatrix, selectedAttention } from "./alignment.js";
import { headStrip, resultList } from "./beside.js";
import { closing, failure, toggle, traceNumber } from "./controls.js";
import { fill, isolatedText, isTouched, make, pickNumber } from "./dom.js";
import { formatFixed, formatPercent, formatTick } from "./numbers.js";
import { attentionTitle, groupTokens, isSelfAttention, isSmall, wholeMatrix } from "./planes.js";
import { groupHint, groupText, groupWords, leaveOut, missingInfluence } from "./refining.js";
import { Stage } from "./ribbons.js";
import { saveButtons } from "./saving.js";
import { rivalsOf } from "./search.js";
import { readableUnits, textOf } from "./text.js";
import { columnSums, findFacts, influenceShares, readInfluence, wordProbabilities } from "./verdict.js";
import { READINGS, VIEWS } from "./views.js";
import { attentionSize } from "./weights.js";

const MAX_WORDS = 120; // words of a line that has ribbons

/** @typedef {import("./ribbons.js").Spot} Spot */
/** @typedef {import("./verdict.js").Matrix} Matrix */
/** @typedef {(rival: import("./search.js").Rival, at: number) => void} Force what a rival does when it is chosen */
/**
 * The two lines, and what is known of them.
 * @typedef {{app: App, number: number, trace: Trace, names: {source: string, target: string}, source: Unit[],
 *   target: Unit[], attention: Matrix, influence: Matrix | null, shares: Matrix | null, idle: number[],
 *   unneeded: number[], groups: number[][], sure: number[] | null, rivals: import("./search.js").Rival[][]}} Reading
 */

/**
 * The sides of a translation, or of any output with an attention to an input: null if there is none.
 * @param {Trace} trace
 * @returns {{source: string, target: string} | null}
 */
function pairedSides(trace) {
  const { attention } = selectedAttention(trace, {});
  const one = trace.attentions[attention];
  if (one.queries === one.keys || isSelfAttention(trace, one)) return null;
  return { source: one.keys, target: one.queries };
}

VIEWS.push({
  name: "read",
  title: "Read",
  open(app, room) {
    const number = traceNumber(app);
    const trace = app.traces[number];
    const sides = pairedSides(trace);
    const matrix = matrixOnDemand(app);
    const main = make("div", { class: "reading" });
    fill(room, main, matrix);
    const units = sides && [trace.sides[sides.source], trace.sides[sides.target]].map(readableUnits);
    const short = units && Math.max(...units.map((one) => one.length)) <= MAX_WORDS;
    const one = trace.attentions[selectedAttention(trace, {}).attention];
    const ribbons = Boolean(short) && isSmall(trace, one);
    const reading = READINGS.find(({ fits }) => fits(trace, ribbons));
    if (reading || !sides || !units) return reading?.open(app, number, main);
    const view = closing(app);
    readPair(app, number, sides, units[0], units[1]).then(
      (reading) => {
        if (!view.closed) showReading(reading, main);
      },
      (error) => fill(main, failure(error))
    );
  }
});

/** The matrix, where somebody asks for it. @param {App} app */
function matrixOnDemand(app) {
  const room = make("div", { class: "matrix-room" });
  const details = make(
    "details",
    {
      class: "matrix",
      open: app.state.matrix === "yes",
      toggle: () => {
        app.updateState({ matrix: details.open ? "yes" : "" });
        if (details.open && !room.childElementCount) openMatrix(app, room);
      }
    },
    make("summary", {}, "As a matrix"),
    room
  );
  return details;
}

/**
 * @param {App} app
 * @param {number} number
 * @param {{source: string, target: string}} names
 * @param {Unit[]} source
 * @param {Unit[]} target
 * @returns {Promise<Reading>}
 */
async function readPair(app, number, names, source, target) {
  const trace = app.traces[number];
  const chosen = selectedAttention(trace, {});
  const attention = await linkMatrix(app, number, chosen, target, source);
  const paired = trace.influence?.rows === names.target && trace.influence.columns === names.source;
  const influence = paired ? readInfluence(trace, target, source) : null;
  const written = trace.written?.side === names.target ? trace.written : null;
  const rivals = trace.search && written ? rivalsOf(trace.search, trace.sides[names.target].tokens, target) : [];
  return {
    app,
    number,
    trace,
    names,
    source,
    target,
    attention,
    influence: influence && influence.matrix,
    shares: influence && influenceShares(influence.matrix),
    idle: influence?.idle ?? [],
    unneeded: influence?.unneeded ?? [],
    groups: influence?.groups ?? [],
    sure: written && wordProbabilities(written, target),
    rivals
  };
}

/**
 * The weights of an attention from words to words; rows that it does not have are 0.
 * @param {App} app
 * @param {number} number
 * @param {{attention: number, head: number, offset: number}} chosen
 * @param {Unit[]} down
 * @param {Unit[]} across
 * @returns {Promise<Matrix>}
 */
async function linkMatrix(app, number, chosen, down, across) {
  const trace = app.traces[number];
  const { rows, columns } = attentionSize(trace, trace.attentions[chosen.attention]);
  const whole = await wholeMatrix(app, number, chosen.attention, chosen.head);
  /** @param {Unit[]} units @param {number} count @param {number} shift */
  const fit = (units, count, shift) =>
    units.map((unit) => {
      const [first, last] = [Math.max(0, unit.first + shift), Math.min(count - 1, unit.last + shift)];
      return { ...unit, first, last };
    });
  const [moved, over] = [fit(down, rows, chosen.offset), fit(across, columns, 0)];
  const values = groupTokens(whole, columns, moved, over);
  for (let b = 0; b < values.length; b++) if (Number.isNaN(values[b])) values[b] = 0; // a word without a row
  return { rows: down.length, columns: across.length, values };
}

/**
 * The layer of one head: links to the source, or arcs inside one line.
 * @param {Reading} reading
 * @param {number} attention
 * @param {number} head −1 for the mean of all
 * @param {number} offset
 * @returns {Promise<import("./ribbons.js").Layer | null>} null if the head reads other sides
 */
async function headLayer(reading, attention, head, offset) {
  const { app, number, trace, names, source, target } = reading;
  const one = trace.attentions[attention];
  const name = attentionTitle(trace, one) + (head < 0 ? ", mean of all heads" : `, head ${head}`);
  const found = { attention, head, offset };
  if (one.queries === names.target && one.keys === names.source)
    return { matrix: await linkMatrix(app, number, found, target, source), colour: "ink", over: "links", name };
  if (one.queries === names.source && one.keys === names.source)
    return { matrix: await linkMatrix(app, number, found, source, source), colour: "ink", over: "source", name };
  if (one.queries !== names.target) return null;
  // What the decoder reads is one token behind what it writes: token t of the output is token t + 1 of what it reads.
  const behind = one.keys === names.target ? 0 : 1;
  const read = target.map((unit) => ({ ...unit, first: unit.first + behind, last: unit.last + behind }));
  return { matrix: await linkMatrix(app, number, found, target, read), colour: "ink", over: "target", name };
}

const [MATTERED, LOOKED] = ["What mattered", "Where it looked"];
const LEFT_OUT =
  "how much less likely each output word becomes when one input word is left out; under an input word the sum, in " +
  "nats (1 nat: 2.7 times less likely). Leaving a word out can break the grammar, and of two words that say the " +
  "same, each seems to have no effect.";
const GROUPED = "Words with a dotted line were left out together with their neighbours, and share the effect.";
const CLICK = "Click one to leave out each of them alone.";
const NOT_THE_SAME = "A word that was looked at need not have mattered.";

/** @type {[string, string][]} */
const MODES = [
  ["mattered", "what mattered"],
  ["looked", "where it looked"],
  ["both", "both"]
];

/** @param {Reading} reading @returns {"mattered" | "looked" | "both"} */
function modeOf({ app, influence }) {
  const asked = app.state.show;
  if (!influence) return "looked";
  if (asked === "both") return "both";
  const kept = app.state.attention !== undefined && app.state.attention !== "best";
  return asked === "looked" || kept ? "looked" : "mattered";
}

/**
 * @param {Reading} reading
 * @param {HTMLElement} room
 * @param {boolean} [again] whether it is shown once more, and a pinned word gets the focus back
 */
function showReading(reading, room, again = false) {
  const { app, trace, source, target, names } = reading;
  const detail = make("div", { class: "detail" });
  const force = forcer(reading, detail);
  const idle = new Set(reading.idle);
  const facts = findFacts(reading);
  const stage = new Stage(app, {
    source,
    target,
    names,
    below: (line, at) => (line === "source" ? sourceNotes(reading, at, idle) : targetNotes(reading, at, force)),
    marked: (line, at) =>
      line === "target" ? "" : (idle.has(at) ? "idle" : "") + (groupAt(reading, at) ? " grouped" : ""),
    room: (line) => (line === "target" && reading.rivals.length && target.length <= 14 ? 78 : 58),
    onActive: (spot, pinned) => {
      describe(reading, stage, spot, detail, force);
      const kept = stage.pinned;
      if (pinned || !stage.hovered) app.updateState({ word: kept ? `${kept.line[0]}${kept.at}` : "" });
      if (pinned && !stage.hovered && spot?.line === "source") void refineGroup(reading, spot.at, detail, room);
    }
  });
  stage.element.classList.toggle("crowded", target.length > 14);
  const method = make("p", { class: "quiet method" });
  const strip = headStrip(app, reading.number, {
    peek: async (attention, head, wanted) => {
      const layer = await headLayer(reading, attention, head, 0);
      if (layer && wanted()) stage.peek([layer]);
    },
    leave: () => stage.peek(null),
    keep: async () => {
      for (const radio of /** @type {HTMLInputElement[]} */ ([...room.querySelectorAll(".toggle input")]))
        radio.checked = radio.value === modeOf(reading);
      stage.preview = null;
      await showMode(reading, stage, method);
    }
  });
  const least = reading.sure ? Math.min(...reading.sure) : null;
  const aside = make(
    "aside",
    { class: "beside", "aria-label": "Heads and results" },
    strip,
    trace.search
      ? resultList("Why this one", trace.search, least, (node) => app.navigate({ view: "search", node: String(node) }))
      : null
  );
  fill(
    room,
    verdictLine(reading, facts, (spot) => {
      stage.pin(spot);
      stage.element.scrollIntoView({ block: "nearest" });
    }),
    make(
      "div",
      { class: "read-grid" },
      make(
        "div",
        { class: "main" },
        reading.influence
          ? toggle("Show", MODES, modeOf(reading), (show) => {
              app.updateState({ show, attention: "", head: "" });
              void showMode(reading, stage, method);
            })
          : null,
        stage.element,
        detail,
        method,
        saveButtons(app, stage, () => matrixRows(reading, stage))
      ),
      aside
    )
  );
  void showMode(reading, stage, method).then(() => {
    stage.layout();
    const pinned = /^([st])(\d{1,6})$/.exec(app.state.word ?? "");
    const line = pinned?.[1] === "s" ? "source" : "target";
    if (!pinned || pickNumber(pinned[2], reading[line].length, -1) < 0) return;
    const spot = /** @type {Spot} */ ({ line, at: Number(pinned[2]) });
    stage.pin(spot);
    if (again) stage.focus(spot);
  });
  describe(reading, stage, null, detail, force);
}

/**
 * The source words that were left out together with this one: null if it was left out alone.
 * @param {Reading} reading
 * @param {number} at
 */
function groupAt({ groups }, at) {
  return groups.find((group) => group.includes(at)) ?? null;
}

/**
 * Leave out each word of a group, where there is a model, and show the text again.
 * @param {Reading} reading
 * @param {number} at a source word
 * @param {HTMLElement} detail
 * @param {HTMLElement} room
 */
async function refineGroup(reading, at, detail, room) {
  const { app, number, trace, names, source, target } = reading;
  const group = groupAt(reading, at);
  if (!group || !trace.refines) return;
  fill(detail, make("p", { class: "quiet", role: "status" }, `Leaving out each of ${group.length} words …`));
  try {
    await leaveOut(app, number, groupWords(source, group));
    if (room.isConnected) showReading(await readPair(app, number, names, source, target), room, true);
  } catch (error) {
    fill(detail, make("p", { class: "wrong", role: "alert" }, /** @type {Error} */ (error).message));
  }
}

/**
 * What a rival does when it is chosen: the model continues with it, or the page shows the command.
 * @param {Reading} reading
 * @param {HTMLElement} detail
 * @returns {Force}
 */
function forcer({ app, trace, names, target }, detail) {
  return (rival, at) => {
    const side = trace.sides[names.target];
    const before = [...(side.text ?? "")].slice(0, side.words?.[target[at].word ?? -1]?.start ?? 0).join("");
    const prefix = rival.text === "(end)" ? before.trimEnd() : before + rival.text;
    if (app.page.asks) {
      app.navigate({ view: "try", prefix, send: "yes" });
      return;
    }
    const [model, text] = [quoted(trace.model || "MODEL"), quoted(textOf(trace.sides[names.source]))];
    const command = `regard translate ${model} ${text} --prefix ${quoted(prefix)}`;
    fill(detail, make("p", {}, "To continue from ", isolatedText(prefix), ":"), make("pre", {}, command));
  };
}

/** @param {string} text for a shell */
function quoted(text) {
  return /^[\w./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/**
 * Show what the address asks for: a mode, or one head.
 * @param {Reading} reading
 * @param {Stage} stage
 * @param {HTMLElement} method
 */
async function showMode(reading, stage, method) {
  const { app, trace, attention, shares } = reading;
  const mode = modeOf(reading);
  const chosen = selectedAttention(trace, app.state);
  /** @type {import("./ribbons.js").Layer[]} */
  const layers = [];
  const looked = chosen.best || (app.state.attention === undefined && app.state.head === undefined);
  const kept = looked ? null : await headLayer(reading, chosen.attention, chosen.head, chosen.offset);
  const one = trace.attentions[chosen.attention];
  const name = attentionTitle(trace, one) + (chosen.head < 0 ? ", mean of all heads" : `, head ${chosen.head}`);
  if (kept) layers.push({ ...kept, colour: mode === "both" ? "soft" : "ink" });
  else if (mode !== "mattered")
    layers.push({ matrix: attention, colour: mode === "both" ? "soft" : "ink", over: "links", name: LOOKED });
  if (shares && (mode === "both" || (mode === "mattered" && !kept)))
    layers.push({ matrix: shares, colour: "accent", over: "links", name: MATTERED });
  stage.show(layers);
  const together = reading.groups.length ? ` ${GROUPED}${trace.refines ? ` ${CLICK}` : ""}` : "";
  fill(
    method,
    ...(shares && mode !== "looked"
      ? [make("strong", { class: "mattered" }, MATTERED), `: ${LEFT_OUT}${together} `]
      : []),
    ...(mode !== "mattered"
      ? [make("strong", {}, LOOKED), `: attention weights of ${name}`, codeName(one), `. ${NOT_THE_SAME} `]
      : []),
    ...(shares ? [] : missingInfluence(app, reading.number))
  );
}

/** The name of an attention in Python, in small. @param {Attention} one */
function codeName(one) {
  return make("small", {}, ` (${one.name})`);
}

/**
 * What the page says first.
 * @param {Reading} reading
 * @param {import("./verdict.js").Fact[]} facts
 * @param {(spot: Spot) => void} pin
 */
function verdictLine(reading, facts, pin) {
  const { influence, sure, rivals } = reading;
  /** @param {"source" | "target"} line @param {number} at @param {string} kind */
  const word = (line, at, kind = "") => {
    const text = isolatedText(reading[line][at].name);
    return make("button", { type: "button", class: `fact ${kind}`, click: () => pin({ line, at }) }, text);
  };
  // The words of a fact, and what follows the last of them.
  /** @param {"source" | "target"} line @param {number[]} list @param {string} [after] */
  const words = (line, list, after = ".") => {
    const shown = list.slice(0, list.length > 5 ? 3 : 5);
    const rest = list.length - shown.length;
    return shown.flatMap((at, i) => {
      const last = i === shown.length - 1;
      const before = i === 0 ? "" : last && rest <= 0 ? " and " : ", ";
      const end = last ? (rest > 0 ? ` and ${rest} more` : "") + after : "";
      return [before, make("span", { class: "fact-end" }, word(line, at, "bad"), end)];
    });
  };
  const parts = facts.slice(0, 2).map((fact) => {
    if (fact.kind === "no effect")
      return [
        "The output would be the same without ",
        ...words("source", fact.words),
        " ",
        ...(fact.at === undefined ? [] : lookedAt(fact.weight ?? 0, word("target", fact.at)))
      ];
    if (fact.kind === "not needed")
      return [
        "No output word needed ",
        ...words("source", fact.words, ""),
        `: without ${fact.words.length > 1 ? "one of them" : "it"} the output is no less likely. `
      ];
    if (fact.kind === "not read")
      return [...words("source", fact.words, ""), ` ${fact.words.length > 1 ? "were" : "was"} hardly looked at. `];
    const [at] = fact.words;
    const rival = rivals[at]?.[0];
    return [
      "The model doubted ",
      word("target", at, "bad"),
      ` (${formatPercent(sure?.[at] ?? 0)}`,
      ...(rival ? ["; ", isolatedText(rival.text), ` ${formatPercent(rival.probability)}`] : []),
      ")",
      ...(fact.words.length > 1 ? [", and ", ...words("target", fact.words.slice(1)), " "] : [". "])
    ];
  });
  /** @param {number} weight @param {HTMLElement} where */
  function lookedAt(weight, where) {
    const end = make("span", { class: "fact-end" }, where, "),");
    return [`It was looked at (${formatFixed(weight, 2)} while writing `, end, " and changed nothing. "];
  }
  const nothing = influence
    ? "Every word mattered."
    : `Every input word was looked at${sure ? ", and no output word has a probability below 60 %" : ""}.`;
  return make("p", { class: "verdict" }, ...(parts.length ? parts.flat() : [nothing]));
}

/**
 * Under a source word: what it was worth.
 * @param {Reading} reading
 * @param {number} at
 * @param {Set<number>} idle
 */
function sourceNotes(reading, at, idle) {
  const { trace, influence, attention, source } = reading;
  const sums = influence ? columnSums(influence) : attention ? columnSums(attention) : null;
  if (!sums) return [];
  const most = Math.max(...sums, 1e-9);
  const bar = make("span", { class: "bar" });
  bar.style.width = `${Math.max(2, (sums[at] / most) * 100)}%`;
  const what = influence
    ? idle.has(at)
      ? "no effect"
      : natsText(sums[at])
    : `${formatFixed(sums[at], 2)}`;
  const group = groupAt(reading, at);
  const loss = group ? group.reduce((sum, j) => sum + sums[j], 0) : sums[at];
  const title = influence
    ? `Without ${group ? "these words" : source[at].name}, the output loses ${formatFixed(loss, 2)} nats. ` +
      (group ? groupHint(trace, group.length) : "")
    : `The weights on ${source[at].name} have the sum ${formatFixed(sums[at], 2)}`;
  return [
    make("span", { class: "worth", "aria-hidden": "true" }, bar),
    make("small", { class: idle.has(at) ? "idle" : "", dir: "ltr", title }, what)
  ];
}

/** "17 nats", "1.6 nats", "1 nat". @param {number} sum */
function natsText(sum) {
  const text = sum >= 9.95 ? String(Math.round(sum)) : formatTick(Math.round(sum * 10) / 10);
  return `${text} ${text === "1" ? "nat" : "nats"}`;
}

/**
 * Under a target word: its probability, and two rivals.
 * @param {Reading} reading
 * @param {number} at
 * @param {Force} force
 */
function targetNotes({ sure, rivals }, at, force) {
  if (!sure) return [];
  const bar = make("span", { class: "bar" });
  bar.style.width = `${Math.max(0, Math.min(1, sure[at])) * 100}%`;
  return [
    make("span", { class: "worth", "aria-hidden": "true" }, bar),
    make("small", { class: sure[at] < 0.6 ? "doubt" : "", dir: "ltr" }, formatPercent(sure[at])),
    ...(rivals[at] ?? []).map((rival) => rivalButton(rival, at, force, "-1"))
  ];
}

/**
 * @param {import("./search.js").Rival} rival
 * @param {number} at
 * @param {Force} force
 * @param {string} stop whether the Tab key reaches it
 */
function rivalButton(rival, at, force, stop) {
  const [title, hot] = [`Continue with ${rival.text} instead`, rival.probability >= 0.02 ? "hot" : ""];
  return make(
    "button",
    { type: "button", class: `rival ${hot}`, tabindex: stop, title, click: () => force(rival, at) },
    isolatedText(rival.text),
    ` ${formatPercent(rival.probability)}`
  );
}

/**
 * Under the stage: what the word that is pointed at or pinned is linked with.
 * @param {Reading} reading
 * @param {Stage} stage
 * @param {Spot | null} spot
 * @param {HTMLElement} room
 * @param {Force} force
 */
function describe(reading, stage, spot, room, force) {
  if (!spot) {
    const hint = isTouched()
      ? "Tap a word to see its links."
      : "Point at a word to see its links; click it to keep them. Arrow keys walk the words, Esc unpins.";
    fill(room, make("span", { class: "quiet" }, hint));
    return;
  }
  const unit = reading[spot.line][spot.at];
  const group = spot.line === "source" ? groupAt(reading, spot.at) : null;
  const sure = spot.line === "target" ? reading.sure?.[spot.at] : undefined;
  const rivals = spot.line === "target" ? (reading.rivals[spot.at] ?? []) : [];
  const links = stage.linked(spot).flatMap(({ layer, line, words }) => [
    make("span", { class: "quiet" }, ` ${layer.name}: `),
    ...words.flatMap(({ at, share }, i) => {
      return [i ? ", " : "", isolatedText(reading[line][at].name), ` ${formatPercent(share)}`];
    }),
    words.length ? "" : "nothing",
    "."
  ]);
  fill(
    room,
    make("strong", {}, isolatedText(unit.name)),
    sure === undefined ? "" : ` ${formatPercent(sure)}`,
    ".",
    ...links,
    ...(group ? groupNote(reading, group) : []),
    spot.line === "source" && reading.app.page.asks ? editButton(reading, spot.at) : null,
    rivals.length ? make("span", { class: "quiet" }, " Instead: ") : null,
    ...rivals.map((rival) => rivalButton(rival, spot.at, force, "0"))
  );
}

/**
 * @param {Reading} reading
 * @param {number[]} group
 */
function groupNote({ trace, names, source }, group) {
  const text = groupText(trace.sides[names.source], source, group);
  return [make("span", { class: "quiet" }, " “", isolatedText(text), `”: ${groupHint(trace, group.length)}`)];
}

/**
 * @param {Reading} reading
 * @param {number} at a source word
 */
function editButton({ app, source }, at) {
  const before = source.slice(0, at).filter((unit) => unit.word !== null).length;
  const open = () => app.navigate({ view: "try", edit: String(before) });
  return make("button", { type: "button", class: "rival", click: open }, "Edit this word");
}

/**
 * What is shown, as rows of a table: for a CSV file.
 * @param {Reading} reading
 * @param {Stage} stage
 */
function matrixRows({ source, target, influence }, stage) {
  const layer = stage.layers[stage.layers.length - 1];
  if (!layer) return [];
  const nats = layer.name === MATTERED && influence;
  const { values } = nats || layer.matrix;
  const [down, across] = [layer.over === "source" ? source : target, layer.over === "target" ? target : source];
  return [
    [layer.name + (nats ? " (nats)" : ""), ...across.map((unit) => unit.name)],
    ...down.map((unit, i) => [unit.name, ...across.map((_, j) => String(values[i * across.length + j]))])
  ];
}
