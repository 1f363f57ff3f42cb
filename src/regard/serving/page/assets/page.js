// Translate while typing: a request 300 ms after the last change; a new one cancels the one before.
const PAUSE = 300;
const byId = (id) => document.getElementById(id);
const [source, target, text, result, message] = ["source", "target", "text", "result", "message"].map(byId);
let languages = [], timer = 0, running = null;

function fill(select, options, chosen) {
  select.replaceChildren(...options.map(({ code, name }) => new Option(name, code, false, code === chosen)));
}

function showTargets() {
  const names = new Map(languages.map(({ code, name }) => [code, name]));
  const from = languages.filter(({ code }) => source.value === "auto" || code === source.value);
  const codes = [...new Set(from.flatMap(({ targets }) => targets))];
  fill(target, codes.map((code) => ({ code, name: names.get(code) ?? code })), target.value);
}

async function translate() {
  running?.abort();
  if (!text.value.trim()) {
    result.value = "";
    return;
  }
  const own = running = new AbortController();
  try {
    const body = JSON.stringify({ q: text.value, source: source.value, target: target.value });
    const answer = await fetch("translate", {
      method: "POST", body, headers: { "Content-Type": "application/json" }, signal: own.signal });
    const table = await answer.json();
    result.value = table.translatedText ?? result.value;
    message.textContent = table.error ?? "";
  } catch (error) {
    if (error.name !== "AbortError") message.textContent = "The server does not answer.";
  }
}

function changed() {
  clearTimeout(timer);
  timer = setTimeout(translate, PAUSE);
}

languages = await (await fetch("languages")).json();
const auto = languages.length > 1 ? [{ code: "auto", name: "Detect language" }] : [];
fill(source, [...auto, ...languages]);
showTargets();
source.addEventListener("change", () => { showTargets(); changed(); });
target.addEventListener("change", changed);
text.addEventListener("input", changed);
byId("form").addEventListener("submit", (event) => event.preventDefault());
