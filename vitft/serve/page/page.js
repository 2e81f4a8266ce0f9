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
fetch("labels").then((response) => response.json()).then(({ classes, thresholds, run, top1, notes_unlike: notes }) => {
  const shown = classes.slice(0, 12).join(", "), accuracy = typeof top1 === "number" ? (thresholds ? " (all labels right: " : " (accuracy ") + percent(top1) + ")" : "";
  const name = run ? "The model of run " + run + accuracy : "The model";
  document.getElementById("known").textContent = visible(name + " has " + classes.length + (thresholds ? " labels: " : " classes: ") + shown + (classes.length > 12 ? ", …" : "") +
    (notes ? "" : ". It does not flag images that are unlike its training images."));
}).catch(() => { document.getElementById("known").textContent = "The server is not responding."; });
