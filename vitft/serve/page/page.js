const page = document.getElementById("main");
const maxBytes = Number(page.dataset.maxBytes);
const explains = page.dataset.explains === "true";
const AT_ONCE = 2, TRIES = 8;
const HINT = explains ? " · select a class to see the regions that support it" : "";

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
  const select = explains ? (name, row) => { showHeat(job, name, row); } : null;
  const first = showPrediction(job, answer.results[0], select);
  if (first) await showHeat(job, answer.results[0].classes[0].class, first);
}

document.getElementById("curl").textContent = "curl -F image=@photo.jpg " + new URL("predict", location.href).href;
const MOST_NAMES = 40;

function addAll(id, nodes) { document.getElementById(id).append(...nodes); }

// A bar from 0 to 100% with a value, its interval and a baseline.
function scoreBar({ value, interval, baseline }) {
  const bar = make("div", "score-bar");
  const part = (name, left, width) => {
    const piece = make("span", name);
    piece.style.left = 100 * left + "%";
    if (width !== undefined) piece.style.width = 100 * width + "%";
    bar.append(piece);
  };
  if (interval) part("band", interval[0], interval[1] - interval[0]);
  if (baseline !== null) part("baseline", baseline);
  part("value", value);
  return bar;
}

function showModel(model) {
  const { classes, thresholds, results, summary } = model;
  const several = Boolean(thresholds), { headline } = results;
  const kind = several ? (classes.length === 1 ? " label" : " labels") : classes.length === 1 ? " class" : " classes";
  document.getElementById("known").textContent = visible(
    model.purpose + (headline ? "; " + headline.measure + " " + percent(headline.value) : "") + ".");
  if (headline) {
    const number = make("p", "number", percent(headline.value));
    const [first, ...more] = summary.map((text) => make("p", "muted crossed", text));
    if (results.rounded) first.textContent += ", before rounding to 8 bits";
    addAll("score", [number, first, ...more, scoreBar(headline)]);
    if (headline.baseline !== null) {
      const text = headline.measure === "accuracy" ? "always the most frequent class" : "random scores";
      addAll("score", [make("p", "muted baseline-text", "mark at " + percent(headline.baseline) + ": " + text)]);
    }
  }
  if (model.caution) {
    const caution = document.getElementById("caution");
    caution.textContent = visible(model.caution);
    caution.hidden = false;
  }
  const facts = [["run", results.name], ["trained", results.ended.slice(0, 10)], ["weights", results.weights], ["input", model.image_size.join(" × ") + " pixels"]];
  for (const [name, value] of facts) if (value) addAll("facts", [make("dt", "", name), make("dd", "", value)]);
  document.getElementById("names").textContent = classes.length + kind;
  for (const name of classes.slice(0, MOST_NAMES)) {
    const item = make("li", "", name);
    item.dir = "auto";
    addAll("classes", [item]);
  }
  if (classes.length > MOST_NAMES) addAll("classes", [make("li", "muted", "and " + (classes.length - MOST_NAMES) + " more")]);
  const notes = [model.notes_unlike
    ? "“unlike the training images”: the image differs from all training images, so its class may be wrong."
    : "Images that are unlike the training images are not flagged" + (several ? "." : ": any image gets one of the classes.")];
  if (results.status) notes.push("The run has not finished (status: " + results.status + ").");
  if (model.threshold) notes.push("“not sure”: the probability is below " + percent(model.threshold) + ".");
  addAll("notes", notes.map((text) => make("li", "", text)));
  const shares = classes.length > 2 ? [0.86, 0.1, 0.04] : [0.9, 0.1];
  const body = document.getElementById("sample");
  addAll("sample", [predictionList(classes.slice(0, shares.length).map((name, i) => ({ class: name, probability: shares[i] })))]);
  body.setAttribute("aria-hidden", "true");
}

fetch("labels").then((response) => response.json()).then(showModel)
  .catch(() => { document.getElementById("known").textContent = "The server is not responding."; });
