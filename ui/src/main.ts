/** The first that runs: what is to be shown is asked for while the page itself is still read. */
import { placeOf } from "./app/place";
import { applyTheme, currentTheme } from "./app/theme";
import { readEarly } from "./session/reading";

const LONGEST_MS = 150;

applyTheme(currentTheme());
const asked = readEarly(placeOf(location.pathname, location.search));
const tired = new Promise((done) => setTimeout(done, LONGEST_MS));
// Drawn once and whole where everything is there; what takes longer is not waited for.
void Promise.all([import("./page"), Promise.race([asked, tired])]).then(([{ show }]) => show());
