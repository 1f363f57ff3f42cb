// The scene from above: past, futures by probability, truth, and who looks at whom at one step in time.
// Reads the JSON document in #scene; draws SVG. Texts are set as text, never as markup.

const scene = JSON.parse(document.getElementById("scene").textContent);
const SPACE = "http://www.w3.org/2000/svg";
const SIDE = 640, EDGE = 24, SHOWN_WEIGHT = 0.02, MAX_ARROWS = 3;
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7a5195", "#868686"];
const slider = document.getElementById("time");
const chosenFutures = document.getElementById("futures");
const chosenAgent = document.getElementById("agent");
const picture = document.getElementById("picture");
const table = document.getElementById("weights");
const steps = scene.past[0].length, later = scene.futures[0][0].length;

const [low, high] = scene.bounds;
const scale = (SIDE - 2 * EDGE) / Math.max(high[0] - low[0], high[1] - low[1], 1e-9);
const size = [0, 1].map((axis) => 2 * EDGE + (high[axis] - low[axis]) * scale);
picture.setAttribute("viewBox", `0 0 ${size.map((length) => length.toFixed(1)).join(" ")}`);

function place(point) {
  return [EDGE + (point[0] - low[0]) * scale, size[1] - EDGE - (point[1] - low[1]) * scale];
}

function draw(name, attributes, parent = picture) {
  const element = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  parent.append(element);
  return element;
}

function line(track, attributes) {
  const shown = track.filter((point) => point).map((point) => place(point).map((value) => value.toFixed(1)).join(","));
  if (shown.length > 1) draw("polyline", { points: shown.join(" "), fill: "none", ...attributes });
}

/** Where an agent is at a step: observed, or in its most probable future. */
function at(agent, step) {
  return step < steps ? scene.past[agent][step] : scene.futures[agent][0][step - steps];
}

function arrow(from, to, weight) {
  const [x1, y1] = place(from), [x2, y2] = place(to);
  const length = Math.hypot(x2 - x1, y2 - y1) || 1, ux = (x2 - x1) / length, uy = (y2 - y1) / length;
  const tip = [x2 - 8 * ux, y2 - 8 * uy], style = { stroke: "currentColor", "stroke-opacity": Math.min(1, 0.15 + 2 * weight),
    "stroke-width": (0.8 + 8 * weight).toFixed(2), "stroke-linecap": "round" };
  draw("line", { x1: x1.toFixed(1), y1: y1.toFixed(1), x2: tip[0].toFixed(1), y2: tip[1].toFixed(1), ...style });
  for (const side of [-1, 1]) {
    draw("line", { x1: tip[0].toFixed(1), y1: tip[1].toFixed(1), x2: (tip[0] - 7 * ux + side * 4 * uy).toFixed(1),
      y2: (tip[1] - 7 * uy - side * 4 * ux).toFixed(1), ...style });
  }
}

/** The names of agents beside their dots, each where it covers the least of what is there. */
function nameAgents(dots, unit) {
  const font = Math.max(11, 10 * unit), apart = 7 * Math.max(1, unit / 1.5);
  const taken = dots.map(([x, y]) => [x - 5, y - 5, x + 5, y + 5]);
  const covered = (box) => taken.reduce((sum, other) => sum +
    Math.max(0, Math.min(box[2], other[2]) - Math.max(box[0], other[0])) *
    Math.max(0, Math.min(box[3], other[3]) - Math.max(box[1], other[1])), 0);
  for (const [x, y, name] of dots) {
    const wide = 0.62 * font * name.length;
    const [best] = [[1, -6], [-1, -6], [1, font + 2], [-1, font + 2]].map(([side, down]) => {
      const left = side > 0 ? x + apart : x - apart - wide;
      const box = [left, y + down - 0.8 * font, left + wide, y + down];
      return { side, down, box, cost: covered(box) };
    }).sort((one, other) => one.cost - other.cost);
    taken.push(best.box);
    const anchor = best.side > 0 ? "start" : "end", left = x + best.side * apart;
    draw("text", { x: left.toFixed(1), y: (y + best.down).toFixed(1), "font-size": font.toFixed(1),
      "text-anchor": anchor }).textContent = name;
  }
}

function show() {
  picture.replaceChildren();
  table.replaceChildren();
  const dots = [], unit = size[0] / (picture.clientWidth || size[0]);
  const step = Number(slider.value), count = Number(chosenFutures.value), only = chosenAgent.value;
  const observed = Math.min(step, steps - 1);
  showLooks(observed, only);
  scene.agents.forEach((name, agent) => {
    const colour = COLOURS[agent % COLOURS.length], faded = only !== "" && Number(only) !== agent;
    const end = Math.max(0, step - steps + 1);
    line(scene.past[agent].slice(0, observed + 1), { stroke: colour, "stroke-width": 2.2, "stroke-opacity": faded ? 0.25 : 1 });
    if (!faded) {
      for (let k = Math.min(count, scene.futures[agent].length) - 1; k >= 0; k -= 1) {
        const last = scene.past[agent][steps - 1];
        line([last, ...scene.futures[agent][k]], { stroke: colour, "stroke-width": 1.2,
          "stroke-opacity": Math.max(0.08, Math.min(1, 3 * scene.probabilities[agent][k])).toFixed(3) });
      }
    }
    if (scene.truth) line([scene.past[agent][steps - 1], ...scene.truth[agent].slice(0, end)],
      { stroke: "currentColor", "stroke-width": 1.4, "stroke-dasharray": "2 3", "stroke-opacity": faded ? 0.25 : 1 });
    const here = at(agent, step);
    if (!here) return;
    const [x, y] = place(here);
    const dot = draw("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: Math.max(5, 4 * unit).toFixed(1), fill: colour });
    draw("title", {}, dot).textContent = name;
    dot.addEventListener("click", () => { chosenAgent.value = only === String(agent) ? "" : String(agent); show(); });
    dots.push([x, y, name]);
  });
  nameAgents(dots, unit);
  const frame = scene.frame + (step - steps + 1) * scene.step;
  document.getElementById("now").textContent = `frame ${+frame.toFixed(6)}, ${step < steps ? "observed" : "predicted"}`;
}

/** The arrows of one observed step, the strongest of each agent, and the largest numbers as a table. */
function showLooks(step, only) {
  const found = [];
  scene.looks.forEach((rows, agent) => {
    if (only !== "" && Number(only) !== agent) return;
    const own = rows[step].map((weight, other) => [weight, agent, other]).filter(([weight, , other]) =>
      other !== agent && weight >= SHOWN_WEIGHT && scene.past[agent][step] && scene.past[other][step]);
    own.sort((one, other) => other[0] - one[0]);
    for (const [weight, , other] of own.slice(0, MAX_ARROWS))
      arrow(scene.past[agent][step], scene.past[other][step], weight);
    found.push(...own);
  });
  found.sort((one, other) => other[0] - one[0]);
  for (const [weight, agent, other] of found.slice(0, 20)) {
    const row = table.insertRow();
    for (const text of [scene.agents[agent], scene.agents[other], weight.toFixed(3)]) row.insertCell().textContent = text;
  }
}

slider.max = String(steps + later - 1);
slider.value = String(steps - 1);
chosenFutures.max = String(scene.futures[0].length);
chosenFutures.value = chosenFutures.max;
scene.agents.forEach((name, agent) => chosenAgent.append(new Option(name, String(agent))));
for (const control of [slider, chosenFutures, chosenAgent]) control.addEventListener("input", show);
addEventListener("resize", show);
show();
