// Classify images in workers of this page; nothing leaves the device.
const meta = JSON.parse(document.getElementById("meta").textContent);
const AT_ONCE = Math.max(1, Math.min(meta.workers, (navigator.hardwareConcurrency || 2) - 1));
const HINT = "";
const TOP = 5;

// workers -----------------------------------------------------------------------------------------------------

const engine = new Blob([document.getElementById("engine").textContent], { type: "text/javascript" });
const address = URL.createObjectURL(engine);
const policy = window.trustedTypes?.createPolicy("vitft-worker", { createScriptURL: () => address });

// One worker with its own copy of the model. `ready` resolves to a warning about this browser, which may be empty.
class Classifier {
  constructor() {
    this.worker = new Worker(policy ? policy.createScriptURL("") : address);
    this.waiting = new Map();
    this.ready = new Promise((resolve, reject) => { this.waiting.set(undefined, { resolve, reject }); });
    this.worker.onmessage = ({ data }) => { this.settle(data.id, data.problem, data); };
    this.worker.onerror = (event) => {
      for (const id of this.waiting.keys()) this.settle(id, "the model stopped: " + (event.message || "not enough memory"));
    };
    const parts = Array.from(document.querySelectorAll("script.weights"), (part) => part.textContent);
    this.worker.postMessage({ description: meta, parts });
  }

  settle(id, problem, answer) {
    const { resolve, reject } = this.waiting.get(id);
    this.waiting.delete(id);
    if (problem) reject(new Error(problem));
    else resolve(id === undefined ? answer.warning : answer);
  }

  classify(id, file) {
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.worker.postMessage({ id, file });
    });
  }
}

const idle = [new Classifier()];
let jobs = 0;

async function work(job) {
  const classifier = idle.pop() ?? new Classifier();
  try {
    await classifier.ready;
    job.body.replaceChildren(make("p", "muted", "predicting …"));
    const { probabilities, notes, seconds } = await classifier.classify(++jobs, job.file);
    if (job.generation !== generation) return;
    const order = probabilities.map((_, i) => i).sort((a, b) => probabilities[b] - probabilities[a] || a - b);
    const classes = order.slice(0, TOP).map((i) => ({ class: meta.classes[i], probability: probabilities[i] }));
    const isGiven = (i) => probabilities[i] >= meta.thresholds[i];
    const labels = meta.thresholds.length ? order.filter(isGiven).map((i) => meta.classes[i]) : undefined;
    showPrediction(job, { classes, labels, notes });
    job.card.dataset.prediction = JSON.stringify({ classes, labels, notes, seconds });
  } finally {
    idle.push(classifier);
  }
}

const ready = document.getElementById("ready"), caution = document.getElementById("caution");

function warn(text) {
  caution.textContent = visible(text);
  caution.hidden = false;
}

idle[0].ready.then((warning) => {
  ready.textContent = "ready";
  if (warning) warn(warning);
}, (error) => {
  ready.textContent = "";
  warn(error.message);
});

// camera ------------------------------------------------------------------------------------------------------

const viewfinder = document.getElementById("viewfinder"), video = document.getElementById("video");
const capture = document.getElementById("capture");

function stopCamera() {
  for (const track of video.srcObject?.getTracks() ?? []) track.stop();
  video.srcObject = null;
}

// Open the camera in a dialog. If the page may not use the camera, the system lets the user take or choose a photo.
document.getElementById("camera").addEventListener("click", async () => {
  try {
    video.srcObject = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 1920 } } });
  } catch {
    capture.click();
    return;
  }
  viewfinder.showModal();
  await video.play();
});
document.getElementById("shoot").addEventListener("click", () => {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
  canvas.getContext("2d").drawImage(video, 0, 0);
  canvas.toBlob((photo) => { addFiles([new File([photo], "photo", { type: "image/png" })]); }, "image/png");
  viewfinder.close();
});
document.getElementById("cancel").addEventListener("click", () => { viewfinder.close(); });
viewfinder.addEventListener("close", stopCamera);
capture.addEventListener("change", () => { addFiles(capture.files); capture.value = ""; });

// facts about the model ---------------------------------------------------------------------------------------

document.title = visible(meta.title);
document.getElementById("known").textContent = visible(meta.summary);
document.getElementById("licence").textContent = visible(meta.licence);
if (meta.caution) warn(meta.caution);
for (const [name, text] of meta.facts) document.getElementById("facts").append(make("dt", "", name), make("dd", "", text));
document.getElementById("table-title").textContent = meta.table_title;
for (const [name, ...cells] of meta.table) {
  const row = make("tr"), header = make("td", "", name);
  header.dir = "auto";
  row.append(header, ...cells.map((cell) => make("td", "", cell)));
  document.getElementById("classes").append(row);
}
