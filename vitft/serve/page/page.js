"use strict";
const page = document.getElementById("main");
const maxBytes = Number(page.dataset.maxBytes);
const explains = page.dataset.explains === "true";
const cards = document.getElementById("cards");
const AT_ONCE = 2, TRIES = 8;
const waiting = [];
let running = 0, done = 0, added = 0, generation = 0;

// Escape invisible characters and characters that change the text direction.
function visible(text) {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g,
    (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = visible(text);
  return element;
}

function percent(probability) {
  return probability >= 0.9995 && probability < 1 ? "> 99.9%" : (100 * probability).toFixed(1) + "%";
}

const pause = (seconds) => new Promise((wake) => setTimeout(wake, 1000 * seconds));

async function ask(path, file) {
  for (let i = 0; ; i++) {
    let response;
    try {
      response = await fetch(path, { method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" } });
    } catch {
      throw new Error("the server did not respond, or the file could not be read");
    }
    if (response.ok) return response;
    if (response.status === 503 && i < TRIES) {
      await pause(Number(response.headers.get("Retry-After")) || 1);
      continue;
    }
    let problem = "the server responded with status " + response.status;
    try { problem = (await response.json()).error || problem; } catch { /* not JSON, e.g. a proxy's error page */ }
    throw new Error(problem);
  }
}

function picture(source, alt, caption) {
  const figure = make("figure"), image = make("img");
  image.alt = alt;
  image.src = source;
  image.addEventListener("error", () => { figure.hidden = true; });
  image.addEventListener("load", () => { figure.hidden = false; });
  figure.append(image, make("figcaption", "", caption));
  return figure;
}

function addCard(file) {
  const card = make("li", "card"), name = file.name || "pasted image";
  const title = make("h2", "", name), pictures = make("div", "pictures"), body = make("div");
  title.dir = "auto";
  const source = URL.createObjectURL(file);
  card.dataset.source = source;
  pictures.append(picture(source, visible(name), "original"));
  body.append(make("p", "muted", "waiting …"));
  card.append(title, pictures, body);
  cards.append(card);
  return { file, name, card, pictures, body, heat: null, generation };
}

function showProblem(job, problem) {
  job.card.classList.add("bad");
  job.body.replaceChildren(make("p", "problem", problem));
  announce(job.name + ": " + problem);
}

function showPrediction(job, { classes, notes = [] }) {
  const list = make("ol", "classes");
  for (const one of classes) {
    const row = make(explains ? "button" : "div", "row");
    const name = make("span", "name", one.class), track = make("span", "track"), fill = make("span", "fill");
    name.dir = "auto";
    fill.style.width = 100 * one.probability + "%";
    track.append(fill);
    row.append(name, track, make("span", "percent", percent(one.probability)));
    if (explains) {
      row.type = "button";
      row.title = "Show the image regions that support this class";
      row.setAttribute("aria-pressed", "false");
      row.addEventListener("click", () => { showHeat(job, one.class, row); });
    }
    const item = make("li");
    item.append(row);
    list.append(item);
  }
  job.body.replaceChildren(list, ...(notes.length ? [make("p", "notes", notes.join("; "))] : []));
  announce([job.name + ": " + classes[0].class + ", " + percent(classes[0].probability), ...notes].join(", "));
  return list.querySelector("button");
}

async function showHeat(job, name, row) {
  for (const other of job.body.querySelectorAll("button.row")) other.setAttribute("aria-pressed", String(other === row));
  const request = job.request = {};
  try {
    const response = await ask("explain?class=" + encodeURIComponent(name), job.file);
    const source = URL.createObjectURL(await response.blob());
    if (job.request !== request || job.generation !== generation) { URL.revokeObjectURL(source); return; }
    if (job.heat) { URL.revokeObjectURL(job.card.dataset.heat); job.heat.remove(); }
    job.card.dataset.heat = source;
    job.heat = picture(source, "Relevance for " + visible(name), "bright regions support " + name);
    job.pictures.append(job.heat);
  } catch (error) {
    if (job.request === request) announce(job.name + ": the overlay could not be drawn: " + error.message);
  }
}

async function work(job) {
  if (job.file.size > maxBytes) throw new Error("the file is larger than " + maxBytes / 1e6 + " MB");
  job.body.replaceChildren(make("p", "muted", "predicting …"));
  const answer = await (await ask("predict?top_k=5", job.file)).json();
  if (job.generation !== generation) return;
  const first = showPrediction(job, answer.results[0]);
  if (first) await showHeat(job, answer.results[0].classes[0].class, first);
}

function next() {
  while (running < AT_ONCE && waiting.length) {
    const job = waiting.shift();
    running++;
    work(job)
      .catch((error) => { if (job.generation === generation) showProblem(job, error.message); })
      .finally(() => { running--; if (job.generation === generation) done++; count(); next(); });
  }
}

function announce(text) { document.getElementById("status").textContent = visible(text); }

function count() {
  document.getElementById("bar").hidden = !added;
  const images = added === 1 ? "1 image" : added + " images";
  const hint = explains ? " · select a class to see the regions that support it" : "";
  document.getElementById("count").textContent = done < added ? done + " of " + images : images + hint;
}

function addFiles(files) {
  for (const file of files) { added++; waiting.push(addCard(file)); }
  count();
  next();
}

const chooser = document.getElementById("files");
chooser.addEventListener("change", () => { addFiles(chooser.files); chooser.value = ""; });
document.addEventListener("paste", (event) => { addFiles(event.clipboardData.files); });
document.addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("over"); });
document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("over"); });
document.addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("over");
  addFiles(event.dataTransfer.files);
});
document.getElementById("clear").addEventListener("click", () => {
  generation++;
  for (const card of cards.children) {
    URL.revokeObjectURL(card.dataset.source);
    if (card.dataset.heat) URL.revokeObjectURL(card.dataset.heat);
  }
  cards.replaceChildren();
  waiting.length = added = done = 0;
  count();
  announce("all images removed");
  chooser.focus();
});
document.getElementById("curl").textContent = "curl -F image=@photo.jpg " + new URL("predict", location.href).href;
fetch("labels").then((response) => response.json()).then(({ classes, run, top1, notes_unlike: notes }) => {
  const shown = classes.slice(0, 12).join(", "), accuracy = typeof top1 === "number" ? " (accuracy " + percent(top1) + ")" : "";
  const name = run ? "The model of run " + run + accuracy : "The model";
  document.getElementById("known").textContent = visible(name + " has " + classes.length + " classes: " + shown + (classes.length > 12 ? ", …" : "") +
    (notes ? "" : ". It does not flag images that are unlike its training images."));
}).catch(() => { document.getElementById("known").textContent = "The server is not responding."; });
