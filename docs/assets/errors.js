// The search of reference/errors: ranks the messages of the page by the words that they share with the pasted text.
function words(text) {
  return new Set(text.toLowerCase().match(/[a-z_]{3,}/g) || []);
}

function addSearch(box) {
  const entries = [...document.querySelectorAll(".md-typeset ul > li")]
    .filter((entry) => entry.firstElementChild && entry.firstElementChild.tagName === "CODE")
    .map((entry) => ({ entry, words: words(entry.firstElementChild.textContent.replace(/[A-Z_]{2,}/g, "")) }));
  const pages = new Map();
  for (const one of entries) for (const word of one.words) pages.set(word, (pages.get(word) || 0) + 1);
  const weight = (word) => Math.log(1 + entries.length / pages.get(word));
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "Paste a message";
  input.setAttribute("aria-label", "Search the messages");
  const found = document.createElement("ul");
  input.addEventListener("input", () => {
    const wanted = words(input.value);
    // Rare words count more, and those of a message that the text lacks count against it.
    const score = (one) =>
      [...one.words].reduce((sum, word) => sum + (wanted.has(word) ? 1 : -0.3) * weight(word), 0);
    const best = entries
      .map((one) => ({ one, shared: score(one) }))
      .filter(({ shared }) => shared > 0)
      .sort((a, b) => b.shared - a.shared)
      .slice(0, 8);
    found.replaceChildren(...best.map(({ one }) => one.entry.cloneNode(true)));
  });
  box.append(input, found);
}

const box = document.getElementById("error-search");
if (box) addSearch(box);
