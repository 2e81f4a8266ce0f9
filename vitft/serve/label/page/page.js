const at = (id) => document.getElementById(id);
const accessKey = new URLSearchParams(location.search).get("key") || "";
const RESERVED = "nsuogm", LETTERS = [..."abcdefghijklmnopqrstuvwxyz"].filter((c) => !RESERVED.includes(c));
const KEYS = [..."123456789", ...LETTERS];
const REASONS = {
  random: "drawn at random, to measure the accuracy",
  typical: "typical of many others",
  unsure: "unsure",
  again: "asked again",
  rest: "one of the rest",
};
const UNSURE_FROM = 0.1; // probability of the second class
let mode = "mixed", state = null, group = null, busy = false;

const percent = (fraction) => (100 * fraction).toFixed(0) + "%";
// A probability is never shown as certain.
const chance = (fraction) => (fraction >= 0.995 ? "> 99%" : fraction < 0.005 ? "< 1%" : percent(fraction));
const number = (value, one, many) => value.toLocaleString("en") + "\u00a0" + (value === 1 ? one : many || one + "s");

function address(path, values = {}) {
  return path + "?" + new URLSearchParams({ ...values, key: accessKey });
}

const pictureAddress = (picture, side) => address("picture", { number: picture, side });
const photoSide = () => Math.min(1600, 320 * Math.ceil(Math.min(innerWidth, 1150) * Math.min(devicePixelRatio || 1, 2) / 320));

async function ask(path, values, body) {
  const options = body === undefined ? {} : { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
  let response;
  try {
    response = await fetch(address(path, values), options);
  } catch {
    throw new Error("vitft label is not running. Start it again and open the new address. All confirmed answers have been saved.");
  }
  const content = await response.json().catch(() => ({}));
  if (response.ok) return content;
  throw new Error((content.error || "the server responded with status " + response.status) + (content.fix ? ". To fix this: " + content.fix : ""));
}

function announce(text) { at("status").textContent = visible(text); }

function showProblem(text) {
  at("problem").hidden = !text;
  at("problem").textContent = visible(text);
}

// One request at a time: a key pressed while an answer is being saved has no effect.
async function run(action) {
  if (busy) return;
  busy = true;
  try {
    await action();
    showProblem("");
  } catch (error) {
    showProblem(error.message);
  } finally {
    busy = false;
  }
}

const asked = () => (mode === "audit" ? "audit" : "mixed");

async function send(path, body) {
  show(await ask(path, { mode: asked() }, body));
}

function classButton(one, i) {
  const guess = mode !== "several" && state.question ? state.question.guesses.find((g) => g.class === one.name) : undefined;
  const best = guess && guess === state.question.guesses[0];
  const button = make("button", best ? "class guess" : "class");
  button.type = "button";
  const name = make("span", "name", one.name);
  name.dir = "auto";
  button.append(make("span", "key", KEYS[i] || ""), name);
  const likely = mode === "several" ? one.likely.toLocaleString("en") : guess ? chance(guess.probability) : state.question && state.question.guesses.length ? "" : one.answers.toLocaleString("en");
  button.append(make("span", "count", likely));
  if (guess) {
    const fill = make("span", "fill");
    fill.style.width = 100 * guess.probability + "%";
    button.append(fill);
  }
  if (mode === "several") button.setAttribute("aria-pressed", String(Boolean(group) && group.class === one.name));
  button.addEventListener("click", () => choose(one.name));
  return button;
}

function announceNext(done) {
  announce(done + ". " + (state.question ? "Next image: " + state.question.path : "No more images"));
}

function choose(name) {
  if (mode === "several") return run(() => openGroup(name));
  if (!state.question) return undefined;
  return run(async () => {
    const before = state.question.picture;
    await send("answer", { picture: before, label: name });
    announceNext(name);
  });
}

async function openGroup(name) {
  const found = await ask("likely", { class: name });
  group = { class: found.class, pictures: found.pictures.map((one) => ({ ...one, ticked: true })) };
  show(state);
}

function confirm() {
  if (!group) return undefined;
  const ticked = group.pictures.filter((one) => one.ticked).map((one) => one.picture);
  const rest = group.pictures.filter((one) => !one.ticked).map((one) => one.picture);
  if (!ticked.length) return undefined;
  return run(async () => {
    const name = group.class;
    await send("confirm", { pictures: ticked, label: name, taken_out: rest });
    announce(number(ticked.length, "image") + " labelled " + name);
    await openGroup(name);
  });
}

function showGroup() {
  const text = at("group-text"), accept = at("accept");
  accept.hidden = true;
  if (!group) {
    text.textContent = state.classes.some((one) => one.likely) ? "Choose a class to see the images that probably belong to it."
      : "First label images of at least two classes.";
    at("tiles").replaceChildren();
    return;
  }
  if (!group.pictures.length) {
    text.textContent = visible("No other image is predicted as " + group.class + ".");
    at("tiles").replaceChildren();
    return;
  }
  const ticked = group.pictures.filter((one) => one.ticked).length;
  text.textContent = visible(number(group.pictures.length, "image") + " predicted as " + group.class + ". Take out any that are wrong. You will be asked about them next.");
  accept.hidden = false;
  accept.disabled = !ticked;
  accept.replaceChildren(make("span", "", number(ticked, "image") + (ticked === 1 ? " is " : " are ") + group.class), make("kbd", "", "Enter"));
  at("tiles").replaceChildren(...group.pictures.map((one, i) => {
    const item = make("li"), tile = make("button", "tile"), image = make("img");
    tile.type = "button";
    tile.setAttribute("aria-pressed", String(one.ticked));
    image.src = pictureAddress(one.picture, 320);
    image.alt = visible("image " + (i + 1) + ", " + group.class + " " + chance(one.probability));
    image.loading = "lazy";
    tile.append(image, make("span", "tick", one.ticked ? "\u2713" : "\u2715"));
    tile.addEventListener("click", () => {
      one.ticked = !one.ticked;
      showGroup();
      at("tiles").children[i].children[0].focus();
    });
    item.append(tile);
    return item;
  }));
}

// A picture is also chosen because it is similar to unsure ones; its own prediction may be clear.
function describeUnsure(first, second) {
  if (!first) return REASONS.unsure;
  return second && second.probability >= UNSURE_FROM ? "unsure between " + first.class + " and " + second.class : "to confirm: probably " + first.class;
}

function showQuestion() {
  const { question } = state, photo = at("photo"), accept = at("accept");
  at("skip").disabled = !question;
  accept.hidden = true;
  if (!question) {
    photo.hidden = true;
    at("name").textContent = "";
    at("reason").textContent = mode === "audit" ? "All images in the random sample have been answered." : "All images have been answered.";
    return;
  }
  photo.hidden = false;
  photo.src = pictureAddress(question.picture, photoSide());
  photo.alt = visible(question.path);
  at("name").textContent = visible(question.path) + (question.copies ? " (" + number(question.copies, "identical file") + ")" : "");
  const [first, second] = question.guesses;
  at("reason").textContent = visible(question.reason === "unsure" ? describeUnsure(first, second) : REASONS[question.reason]);
  if (first) {
    accept.hidden = false;
    accept.disabled = false;
    accept.replaceChildren(make("span", "", "It is " + first.class), make("kbd", "", "Enter"));
  }
  for (const picture of state.upcoming) new Image().src = pictureAddress(picture, photoSide());
}

function showReport() {
  const { accuracy } = state, text = at("accuracy");
  const left = accuracy.sample - accuracy.images - accuracy.skipped;
  const more = left ? " " + number(left, "more image") + " in the sample can be answered." : "";
  const skipped = accuracy.skipped ? " " + accuracy.skipped + " skipped." : "";
  const why = " Images chosen for labelling do not count, because they are not a random sample.";
  if (accuracy.low === undefined) {
    text.replaceChildren(make("strong", "", "Accuracy: not measured yet."), make("span", "",
      " It is measured only on a random sample of " + number(accuracy.sample, "image") + "." + why));
  } else {
    text.replaceChildren(make("strong", "", "Accuracy " + percent(accuracy.correct / accuracy.images) + ", 95% interval "
      + (100 * accuracy.low).toFixed(0) + " to " + percent(accuracy.high) + "."), make("span", "",
      " Guessed correctly: " + accuracy.correct + " of " + number(accuracy.images, "image") + " drawn at random." + skipped + more + why));
  }
  at("progress").textContent = number(state.answered, "image") + " of " + state.pictures.toLocaleString("en") + " labelled"
    + (state.skipped ? ", " + state.skipped + " skipped" : "") + (state.unreadable ? ", " + number(state.unreadable, "file") + " unreadable" : "") + ".";
  at("notes").replaceChildren(...state.notes.map((note) => make("li", "", note)));
}

function show(next) {
  state = next;
  at("one").hidden = mode === "several";
  at("group").hidden = mode !== "several";
  at("skip").hidden = at("new").hidden = mode === "several";
  for (const name of ["mixed", "several", "audit"]) at("mode-" + name).setAttribute("aria-pressed", String(mode === name));
  at("classes").replaceChildren(...state.classes.map(classButton));
  at("undo").disabled = !state.undo;
  at("undo").title = state.undo ? visible("Undo " + state.undo) : "";
  if (mode === "several") showGroup();
  else showQuestion();
  showReport();
}

function change(name) {
  return run(async () => {
    mode = name;
    group = null;
    show(await ask("state", { mode: asked() }));
    at("main").focus?.();
  });
}

const skip = () => (mode !== "several" && state.question ? run(async () => {
  await send("skip", { picture: state.question.picture });
  announceNext("Skipped");
}) : undefined);
const undo = () => (state.undo ? run(async () => {
  const what = state.undo;
  await send("undo", {});
  announce("Undone: " + what);
  if (group) await openGroup(group.class);
}) : undefined);

function accept() {
  if (mode === "several") return confirm();
  return state.question && state.question.guesses.length ? choose(state.question.guesses[0].class) : undefined;
}

function addClass() {
  const input = at("new-name"), name = input.value.trim();
  if (!name || mode === "several" || !state.question) return;
  input.value = "";
  input.blur();
  choose(name);
}

const SHORTCUTS = {
  n: () => at("new-name").focus(), s: skip, u: undo,
  o: () => change("mixed"), g: () => change("several"), m: () => change("audit"), // none toggles: digits depend on the mode
};

document.addEventListener("keydown", (event) => {
  const { target, key } = event, tag = target && target.tagName;
  if (tag === "INPUT") {
    if (key === "Escape") target.blur();
    return;
  }
  if (!state || event.altKey || event.repeat) return;
  if ((event.ctrlKey || event.metaKey) && key === "z") { event.preventDefault(); undo(); return; }
  if (event.ctrlKey || event.metaKey) return;
  if (key === "Enter" && tag !== "BUTTON") { event.preventDefault(); accept(); return; }
  const i = KEYS.indexOf(key.toLowerCase());
  if (i >= 0 && i < state.classes.length) { event.preventDefault(); choose(state.classes[i].name); return; }
  const shortcut = SHORTCUTS[key.toLowerCase()];
  if (shortcut) { event.preventDefault(); shortcut(); }
});
for (const name of ["mixed", "several", "audit"]) at("mode-" + name).addEventListener("click", () => change(name));
at("skip").addEventListener("click", skip);
at("undo").addEventListener("click", undo);
at("accept").addEventListener("click", accept);
at("new").addEventListener("submit", (event) => { event.preventDefault(); addClass(); });
change("mixed");
