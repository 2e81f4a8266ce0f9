// Decisions about files: the state of each file, the controls of its cards, and the table to save.
const decisions = document.getElementById("decisions");
if (decisions) {
  const { header, files, classes, former, key } = JSON.parse(decisions.dataset.table);
  const cards = files.map(() => []);
  const index = new Map(classes.map(([, cell], number) => [cell, number]));
  const kept = new Set(former.filter(([, action]) => action === "keep" || action === "move").map(([path]) => path));
  const proposed = files.map(([path, action, , suggested]) => ({
    action: kept.has(path) ? "keep" : action, target: index.get(suggested) ?? -1,
  }));
  let chosen = new Map();

  const amount = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
  const stateOf = (file) => chosen.get(file) ?? proposed[file];
  // Of the cards of a file, only that of a label error has a button for the suggested class.
  const suggestedOf = (card) => Number(card.dataset.suggested ?? -1);

  function show(file) {
    const { action, target } = stateOf(file);
    for (const card of cards[file]) {
      const value = action === "move" ? (target === suggestedOf(card) ? "suggested" : "") : action;
      for (const input of all("input", card)) input.checked = input.value === value;
      const select = card.querySelector("select");
      if (select) select.value = action === "move" && value === "" ? String(target) : "";
      select?.classList.toggle("set", select.value !== "");
      card.dataset.action = action;
      card.classList.toggle("changed", chosen.has(file));
    }
  }

  function tally() {
    const counts = { keep: 0, move: 0, drop: 0, undecided: 0 }, rows = table();
    rows.forEach(([action]) => { counts[action] += 1; });
    const text = `${amount(rows.length, "file")} in the table: ${counts.drop} to drop, ${counts.move} to move, ${counts.keep} to keep, ${counts.undecided} undecided`;
    document.getElementById("tally").textContent = chosen.size ? `${text}. You decided on ${chosen.size}.` : `${text}. You have not decided yet.`;
  }

  // Browsers may refuse to store anything for pages opened from the disk; the page works without.
  function remember() {
    try { localStorage.setItem("vitft-" + key, JSON.stringify([...chosen])); } catch { /* not stored */ }
  }

  function recall() {
    try { chosen = new Map(JSON.parse(localStorage.getItem("vitft-" + key)) ?? []); } catch { chosen = new Map(); }
    for (const [file, { action, target }] of chosen) {
      const known = files[file] && ["keep", "drop", "move", "undecided"].includes(action) && (action !== "move" || classes[target]);
      if (!known) chosen.delete(file);
    }
  }

  // Without an action, the decision is withdrawn.
  function decide(file, action, target = -1) {
    if (action) chosen.set(file, { action, target });
    else chosen.delete(file);
    document.getElementById("saved").textContent = "";
    remember();
    show(file);
    tally();
  }

  // Text as bytes: names that are not valid UTF-8 get their original bytes back.
  function bytes(text) {
    const parts = text.split(/([\udc80-\udcff])/u);
    return parts.map((part, i) => (i % 2 ? new Uint8Array([part.charCodeAt(0) - 0xdc00]) : part));
  }

  // The rows of the table: earlier decisions, replaced by new ones. What was moved and is kept now stays moved.
  function table() {
    const rows = new Map(former.map(([path, action, row]) => [path, [action, row]]));
    files.forEach(([path, , label, suggested, tail, listed], file) => {
      const { action, target } = stateOf(file);
      const earlier = rows.get(path)?.[0];
      if (action === "undecided" && (earlier || !listed)) return;
      if (action === "keep" && earlier && earlier !== "undecided") return;
      const moved = action === "move" ? classes[target][1] : action === "drop" ? "" : suggested;
      rows.set(path, [action, [path, action, label, moved, tail].join(",")]);
    });
    return [...rows.values()];
  }

  // The byte order mark tells spreadsheets that the text is UTF-8, as in the table of `vitft check`.
  function save() {
    const rows = table();
    const text = [header, ...rows.map(([, row]) => row)].join("\n") + "\n";
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob(["\ufeff", ...bytes(text)], { type: "text/csv" }));
    link.download = "fixes.csv";
    document.body.append(link);
    link.click();
    link.remove();
    document.getElementById("saved").textContent = `Saved: ${amount(rows.length, "file")}.`;
  }

  all(".decide", decisions).forEach((card) => {
    const file = Number(card.dataset.file), own = index.get(files[file][2]);
    cards[file].push(card);
    all("input", card).forEach((input) => input.addEventListener("change", () => {
      if (input.value === "suggested") decide(file, "move", suggestedOf(card));
      else decide(file, input.value);
    }));
    const select = card.querySelector("select");
    if (!select) return;
    classes.forEach(([name], number) => {
      if (number !== own && number !== suggestedOf(card)) select.append(new Option(name, String(number)));
    });
    select.addEventListener("change", () => {
      if (select.value === "") decide(file, null);
      else decide(file, "move", Number(select.value));
    });
  });
  document.getElementById("save").addEventListener("click", save);
  recall();
  files.forEach((_, file) => show(file));
  tally();
}
