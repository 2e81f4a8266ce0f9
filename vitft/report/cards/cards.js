// Chosen images as cards: a queue, the prediction or problem of each image, and announcements for screen readers.
// The script of each page, which follows this one, defines:
//   AT_ONCE     how many images are classified at the same time
//   HINT        text after the number of images, when all have been classified
//   work(job)   classifies the image of a job and calls showPrediction, or throws an Error with the problem
const cards = document.getElementById("cards");
const waiting = [];
let running = 0, done = 0, added = 0, generation = 0;

function percent(probability) {
  return probability >= 0.9995 && probability < 1 ? "> 99.9%" : (100 * probability).toFixed(1) + "%";
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

// The classes with their probabilities as a list of bars. With `select`, each class is a button that calls
// select(class, button).
function predictionList(classes, labels, select = null) {
  const list = make("ol", "classes");
  for (const one of classes) {
    const row = make(select ? "button" : "div", "row");
    const name = make("span", "name", one.class), track = make("span", "track"), fill = make("span", "fill");
    name.dir = "auto";
    fill.style.width = 100 * one.probability + "%";
    track.append(fill);
    row.append(name, track, make("span", "percent", percent(one.probability)));
    if (select) {
      row.type = "button";
      row.title = "Show the image regions that support this class";
      row.setAttribute("aria-pressed", "false");
      row.addEventListener("click", () => { select(one.class, row); });
    }
    const item = make("li", labels && labels.includes(one.class) ? "given" : "");
    item.append(row);
    list.append(item);
  }
  return list;
}

// Show the classes (or labels) and notes of a prediction; the first button of the list is returned, if it has any.
function showPrediction(job, { classes, labels, notes = [] }, select = null) {
  const list = predictionList(classes, labels, select);
  const given = labels ? [make("p", "labels", labels.length ? "labels: " + labels.join(", ") : "no label")] : [];
  job.body.replaceChildren(...given, list, ...(notes.length ? [make("p", "notes", notes.join("; "))] : []));
  const answer = labels ? labels.join(", ") || "no label" : classes[0].class + ", " + percent(classes[0].probability);
  announce([job.name + ": " + answer, ...notes].join(", "));
  return list.querySelector("button");
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
  document.getElementById("count").textContent = done < added ? done + " of " + images : images + HINT;
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
