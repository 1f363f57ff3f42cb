"""The words of the phrasebook as tables: nouns, verbs, adjectives and function words. Data alone.

NOUNS: English, French, gender, kind; then the English and the French plural where the rules do not give them. Kinds, by
which verbs and adjectives select nouns: P person, A animal, F countable food, M mass food, D drink, W text, B picture,
U music, T thing, O what opens and closes, C clothes, V vehicle, S furniture, I instrument, L place, K destination,
H building, N nature, X thought, E event. Nouns for people have the gender of the French word given here: `friend` is
`ami`. No noun has a plural equal to its singular, because English would not show the number. `*` marks an aspirated h.

VERBS: English base, past, participle; French; kinds of subjects, kinds of objects; flags. English may add a particle to
the base (`look at`), French a preposition (`obéir à`), each after a space. A verb without kinds of objects is
intransitive. Flags: `moves` takes être in the past; `reflexive` does so too and has se; `lasts` is a state, whose past
is the imparfait, without passive and adverb of manner; `definite` has no object with `a` or `some`; `gives` can have a
recipient, `only gives` must; `alone` is not done in company. No verb has a past equal to its base (`put`), because
English would not show the tense. No particle of a verb with an object is a preposition of place or company.

ADJECTIVES: English, comparative, French, French feminine, side of the noun, kinds of nouns. The comparative is empty
where English says `more`, and `-` where the word is not compared. The feminine is empty where the rules give it. A
seventh entry is the masculine singular before a vowel. No adjective is spelt like the participle of a verb that has a
passive.

In fixed phrases, words of the two sides that share a digit after the slash are linked; without a slash all are. The
adverbs of time are listed by the tense they go with.
"""

NOUNS: tuple[tuple[str, ...], ...] = (
    ("man", "homme", "m", "P", "men"), ("woman", "femme", "f", "P", "women"), ("boy", "garçon", "m", "P"),
    ("girl", "fille", "f", "P"), ("child", "enfant", "m", "P", "children"), ("king", "roi", "m", "P"),
    ("queen", "reine", "f", "P"), ("brother", "frère", "m", "P"), ("sister", "sœur", "f", "P"),
    ("father", "père", "m", "P"), ("mother", "mère", "f", "P"), ("uncle", "oncle", "m", "P"),
    ("aunt", "tante", "f", "P"), ("husband", "mari", "m", "P"), ("wife", "épouse", "f", "P", "wives"),
    ("friend", "ami", "m", "P"), ("neighbour", "voisin", "m", "P"), ("doctor", "médecin", "m", "P"),
    ("nurse", "infirmière", "f", "P"), ("teacher", "professeur", "m", "P"), ("student", "étudiant", "m", "P"),
    ("pupil", "élève", "m", "P"), ("baker", "boulanger", "m", "P"), ("farmer", "fermier", "m", "P"),
    ("fisherman", "pêcheur", "m", "P", "fishermen"), ("soldier", "soldat", "m", "P"), ("sailor", "marin", "m", "P"),
    ("actor", "acteur", "m", "P"), ("actress", "actrice", "f", "P"), ("singer", "chanteur", "m", "P"),
    ("waitress", "serveuse", "f", "P"), ("princess", "princesse", "f", "P"), ("hero", "*héros", "m", "P", "heroes"),
    ("thief", "voleur", "m", "P", "thieves"), ("lawyer", "avocat", "m", "P"), ("engineer", "ingénieur", "m", "P"),
    ("writer", "écrivain", "m", "P"), ("painter", "peintre", "m", "P"), ("musician", "musicien", "m", "P"),
    ("gardener", "jardinier", "m", "P"), ("judge", "juge", "m", "P"), ("lady", "dame", "f", "P"),
    ("dog", "chien", "m", "A"), ("cat", "chat", "m", "A"), ("horse", "cheval", "m", "A"), ("cow", "vache", "f", "A"),
    ("pig", "cochon", "m", "A"), ("goat", "chèvre", "f", "A"), ("bird", "oiseau", "m", "A"),
    ("mouse", "souris", "f", "A", "mice"), ("rabbit", "lapin", "m", "A"), ("wolf", "loup", "m", "A", "wolves"),
    ("fox", "renard", "m", "A"), ("bear", "ours", "m", "A"), ("lion", "lion", "m", "A"), ("monkey", "singe", "m", "A"),
    ("elephant", "éléphant", "m", "A"), ("frog", "grenouille", "f", "A"),
    ("owl", "*hibou", "m", "A", "owls", "*hiboux"), ("donkey", "âne", "m", "A"), ("turtle", "tortue", "f", "A"),
    ("camel", "chameau", "m", "A"),
    ("apple", "pomme", "f", "F"), ("pear", "poire", "f", "F"), ("orange", "orange", "f", "F"),
    ("lemon", "citron", "m", "F"), ("cherry", "cerise", "f", "F"), ("strawberry", "fraise", "f", "F"),
    ("tomato", "tomate", "f", "F", "tomatoes"), ("carrot", "carotte", "f", "F"), ("onion", "oignon", "m", "F"),
    ("egg", "œuf", "m", "F"), ("cake", "gâteau", "m", "F"), ("mushroom", "champignon", "m", "F"),
    ("bean", "*haricot", "m", "F"), ("nut", "noix", "f", "F"), ("apricot", "abricot", "m", "F"),
    ("bread", "pain", "m", "M"), ("cheese", "fromage", "m", "M"), ("meat", "viande", "f", "M"),
    ("rice", "riz", "m", "M"), ("butter", "beurre", "m", "M"), ("soup", "soupe", "f", "M"), ("honey", "miel", "m", "M"),
    ("jam", "confiture", "f", "M"), ("water", "eau", "f", "D"), ("milk", "lait", "m", "D"),
    ("coffee", "café", "m", "D"), ("tea", "thé", "m", "D"), ("wine", "vin", "m", "D"), ("beer", "bière", "f", "D"),
    ("book", "livre", "m", "W"), ("letter", "lettre", "f", "W"), ("novel", "roman", "m", "W"),
    ("poem", "poème", "m", "W"), ("newspaper", "journal", "m", "W"), ("story", "histoire", "f", "W"),
    ("article", "article", "m", "W"), ("report", "rapport", "m", "W"), ("picture", "image", "f", "B"),
    ("painting", "tableau", "m", "B"), ("drawing", "dessin", "m", "B"), ("map", "carte", "f", "B"),
    ("poster", "affiche", "f", "B"), ("song", "chanson", "f", "U"), ("melody", "mélodie", "f", "U"),
    ("symphony", "symphonie", "f", "U"), ("opera", "opéra", "m", "U"),
    ("key", "clé", "f", "T"), ("knife", "couteau", "m", "T", "knives"), ("fork", "fourchette", "f", "T"),
    ("glass", "verre", "m", "T"), ("cup", "tasse", "f", "T"), ("plate", "assiette", "f", "T"),
    ("bottle", "bouteille", "f", "T"), ("lamp", "lampe", "f", "T"), ("watch", "montre", "f", "T"),
    ("clock", "horloge", "f", "T"), ("pen", "stylo", "m", "T"), ("toy", "jouet", "m", "T"),
    ("umbrella", "parapluie", "m", "T"), ("mirror", "miroir", "m", "T"), ("hammer", "marteau", "m", "T"),
    ("jewel", "bijou", "m", "T", "jewels", "bijoux"), ("candle", "bougie", "f", "T"),
    ("computer", "ordinateur", "m", "T"), ("machine", "machine", "f", "T"), ("gift", "cadeau", "m", "T"),
    ("tool", "outil", "m", "T"), ("door", "porte", "f", "O"), ("window", "fenêtre", "f", "O"),
    ("box", "boîte", "f", "O"), ("drawer", "tiroir", "m", "O"), ("suitcase", "valise", "f", "O"),
    ("cupboard", "armoire", "f", "O"),
    ("shirt", "chemise", "f", "C"), ("dress", "robe", "f", "C"), ("coat", "manteau", "m", "C"),
    ("hat", "chapeau", "m", "C"), ("shoe", "chaussure", "f", "C"), ("glove", "gant", "m", "C"),
    ("scarf", "écharpe", "f", "C", "scarves"), ("jacket", "veste", "f", "C"), ("uniform", "uniforme", "m", "C"),
    ("car", "voiture", "f", "V"), ("bicycle", "vélo", "m", "V"), ("train", "train", "m", "V"),
    ("boat", "bateau", "m", "V"), ("plane", "avion", "m", "V"), ("truck", "camion", "m", "V"),
    ("tractor", "tracteur", "m", "V"), ("table", "table", "f", "S"), ("chair", "chaise", "f", "S"),
    ("bed", "lit", "m", "S"), ("desk", "bureau", "m", "S"), ("armchair", "fauteuil", "m", "S"),
    ("bench", "banc", "m", "S"), ("carpet", "tapis", "m", "S"), ("piano", "piano", "m", "I"),
    ("guitar", "guitare", "f", "I"), ("violin", "violon", "m", "I"), ("flute", "flûte", "f", "I"),
    ("accordion", "accordéon", "m", "I"),
    ("garden", "jardin", "m", "K"), ("park", "parc", "m", "K"), ("street", "rue", "f", "L"),
    ("market", "marché", "m", "K"), ("forest", "forêt", "f", "L"), ("village", "village", "m", "K"),
    ("field", "champ", "m", "L"), ("valley", "vallée", "f", "L"), ("kitchen", "cuisine", "f", "L"),
    ("bedroom", "chambre", "f", "L"), ("house", "maison", "f", "H"), ("castle", "château", "m", "H"),
    ("church", "église", "f", "H"), ("hotel", "hôtel", "m", "H"), ("museum", "musée", "m", "H"),
    ("school", "école", "f", "H"), ("hospital", "hôpital", "m", "H"), ("restaurant", "restaurant", "m", "H"),
    ("bakery", "boulangerie", "f", "H"), ("shop", "magasin", "m", "H"), ("theatre", "théâtre", "m", "H"),
    ("factory", "usine", "f", "H"), ("tower", "tour", "f", "H"), ("farm", "ferme", "f", "H"),
    ("tree", "arbre", "m", "N"), ("flower", "fleur", "f", "N"), ("rose", "rose", "f", "N"),
    ("stone", "pierre", "f", "N"), ("star", "étoile", "f", "N"), ("mountain", "montagne", "f", "N"),
    ("river", "rivière", "f", "N"), ("island", "île", "f", "N"),
    ("idea", "idée", "f", "X"), ("question", "question", "f", "X"), ("problem", "problème", "m", "X"),
    ("answer", "réponse", "f", "X"), ("secret", "secret", "m", "X"), ("project", "projet", "m", "E"),
    ("mistake", "erreur", "f", "X"), ("lesson", "leçon", "f", "E"), ("rule", "règle", "f", "X"),
    ("exercise", "exercice", "m", "E"), ("game", "jeu", "m", "E"),
)

VERBS: tuple[tuple[str, ...], ...] = (
    ("eat", "ate", "eaten", "manger", "PA", "FM"), ("drink", "drank", "drunk", "boire", "PA", "D"),
    ("prepare", "prepared", "prepared", "préparer", "P", "FMDE"), ("taste", "tasted", "tasted", "goûter", "P", "FMD"),
    ("buy", "bought", "bought", "acheter", "P", "AFMDTOCVSIWBH"),
    ("sell", "sold", "sold", "vendre", "P", "AFMDTOCVSIWBH", "gives"),
    ("find", "found", "found", "trouver", "P", "ATOCFWBX"), ("lose", "lost", "lost", "perdre", "P", "TCWB"),
    ("look for", "looked", "looked", "chercher", "PA", "PA"),
    ("look at", "looked", "looked", "regarder", "PA", "PABVNHT"),
    ("listen to", "listened", "listened", "écouter", "P", "PU"),
    ("wait for", "waited", "waited", "attendre", "P", "PV"), ("keep", "kept", "kept", "garder", "P", "TCWB"),
    ("see", "saw", "seen", "voir", "PA", "PAVNHLKTS"), ("hear", "heard", "heard", "entendre", "PA", "PAUVI"),
    ("love", "loved", "loved", "aimer", "P", "PAUWBFMDNLKH", "lasts", "definite"),
    ("hate", "hated", "hated", "détester", "P", "PAUWFMDXE", "lasts", "definite"),
    ("prefer", "preferred", "preferred", "préférer", "P", "FMDUWBCVI", "lasts", "definite"),
    ("admire", "admired", "admired", "admirer", "P", "PWBNH", "lasts", "definite"),
    ("know", "knew", "known", "connaître", "P", "PLKHWUBXE", "lasts", "definite"),
    ("help", "helped", "helped", "aider", "P", "PA"), ("invite", "invited", "invited", "inviter", "P", "P"),
    ("thank", "thanked", "thanked", "remercier", "P", "P"), ("meet", "met", "met", "rencontrer", "P", "P"),
    ("call", "called", "called", "appeler", "P", "PA"), ("follow", "followed", "followed", "suivre", "PA", "PAV"),
    ("protect", "protected", "protected", "protéger", "PA", "PA"),
    ("attack", "attacked", "attacked", "attaquer", "A", "PA"), ("bite", "bit", "bitten", "mordre", "A", "PA"),
    ("feed", "fed", "fed", "nourrir", "P", "A"), ("visit", "visited", "visited", "visiter", "P", "LKH"),
    ("forget", "forgot", "forgotten", "oublier", "P", "PTCXEW"),
    ("understand", "understood", "understood", "comprendre", "P", "PXEW"),
    ("explain", "explained", "explained", "expliquer", "P", "XEW", "gives"),
    ("choose", "chose", "chosen", "choisir", "P", "FTCVSIBWE"), ("wash", "washed", "washed", "laver", "P", "CVFTS"),
    ("clean", "cleaned", "cleaned", "nettoyer", "P", "CVSTLKHO"),
    ("repair", "repaired", "repaired", "réparer", "P", "VTSOI"), ("break", "broke", "broken", "casser", "P", "TOS"),
    ("open", "opened", "opened", "ouvrir", "P", "O"), ("close", "closed", "closed", "fermer", "P", "OH"),
    ("wear", "wore", "worn", "porter", "P", "C"), ("carry", "carried", "carried", "porter", "P", "TOSI"),
    ("throw", "threw", "thrown", "jeter", "P", "TFN"), ("hide", "hid", "hidden", "cacher", "P", "TWBFO"),
    ("steal", "stole", "stolen", "voler", "P", "TVBCI"),
    ("bring", "brought", "brought", "apporter", "P", "FMDTWBI", "gives"),
    ("receive", "received", "received", "recevoir", "P", "TWB"),
    ("write", "wrote", "written", "écrire", "P", "WU", "gives"),
    ("finish", "finished", "finished", "finir", "P", "WBE"), ("begin", "began", "begun", "commencer", "P", "WBE"),
    ("study", "studied", "studied", "étudier", "P", "WXEBU"), ("paint", "painted", "painted", "peindre", "P", "BOSHN"),
    ("draw", "drew", "drawn", "dessiner", "P", "ANHPV"), ("build", "built", "built", "construire", "P", "HVS"),
    ("destroy", "destroyed", "destroyed", "détruire", "P", "HVB"),
    ("discover", "discovered", "discovered", "découvrir", "P", "LKNX"),
    ("cross", "crossed", "crossed", "traverser", "PA", "LK"), ("drive", "drove", "driven", "conduire", "P", "V"),
    ("push", "pushed", "pushed", "pousser", "P", "VSO"), ("touch", "touched", "touched", "toucher", "PA", "ATSNFI"),
    ("describe", "described", "described", "décrire", "P", "PALKHNB", "gives"),
    ("borrow", "borrowed", "borrowed", "emprunter", "P", "TVWCI"),
    ("have", "had", "had", "avoir", "P", "ATCVSIX", "lasts"),
    ("give", "gave", "given", "donner", "P", "AFTCWBI", "only gives"),
    ("show", "showed", "shown", "montrer", "P", "TWBCVLKH", "only gives"),
    ("send", "sent", "sent", "envoyer", "P", "WBT", "only gives"),
    ("offer", "offered", "offered", "offrir", "P", "FDTCWB", "only gives"),
    ("lend", "lent", "lent", "prêter", "P", "TVWCI", "only gives"),
    ("go to", "went", "gone", "aller à", "P", "KH", "moves"),
    ("return to", "returned", "returned", "retourner à", "P", "KH", "moves"),
    ("come from", "came", "come", "venir de", "P", "KH", "moves"),
    ("enter", "entered", "entered", "entrer dans", "PA", "LKH", "moves"),
    ("talk to", "talked", "talked", "parler à", "P", "PA"),
    ("talk about", "talked", "talked", "parler de", "P", "PXEW"),
    ("think about", "thought", "thought", "penser à", "P", "PXELKH"),
    ("dream of", "dreamed", "dreamed", "rêver de", "P", "PLKNA"), ("obey", "obeyed", "obeyed", "obéir à", "PA", "P"),
    ("answer", "answered", "answered", "répondre à", "P", "P"), ("smile at", "smiled", "smiled", "sourire à", "P", "P"),
    ("play", "played", "played", "jouer de", "P", "I"), ("sleep", "slept", "slept", "dormir", "PA", "", "alone"),
    ("work", "worked", "worked", "travailler", "P", ""), ("laugh", "laughed", "laughed", "rire", "P", ""),
    ("cry", "cried", "cried", "pleurer", "P", ""), ("sing", "sang", "sung", "chanter", "P", ""),
    ("dance", "danced", "danced", "danser", "P", ""), ("swim", "swam", "swum", "nager", "PA", ""),
    ("run", "ran", "run", "courir", "PA", ""), ("walk", "walked", "walked", "marcher", "PA", ""),
    ("fall", "fell", "fallen", "tomber", "PA", "", "moves"),
    ("arrive", "arrived", "arrived", "arriver", "PA", "", "moves"),
    ("leave", "left", "left", "partir", "PA", "", "moves"), ("go out", "went", "gone", "sortir", "PA", "", "moves"),
    ("come back", "came", "come", "revenir", "PA", "", "moves"),
    ("stay", "stayed", "stayed", "rester", "PA", "", "moves"), ("jump", "jumped", "jumped", "sauter", "PA", ""),
    ("travel", "travelled", "travelled", "voyager", "P", ""),
    ("get up", "got", "got", "lever", "PA", "", "reflexive", "alone"),
    ("wake up", "woke", "woken", "réveiller", "PA", "", "reflexive", "alone"),
    ("rest", "rested", "rested", "reposer", "PA", "", "reflexive", "alone"),
    ("stop", "stopped", "stopped", "arrêter", "PA", "", "reflexive"),
    ("hurry", "hurried", "hurried", "dépêcher", "P", "", "reflexive"),
    ("fall asleep", "fell", "fallen", "endormir", "PA", "", "reflexive", "alone"),
)

ADJECTIVES: tuple[tuple[str, ...], ...] = (
    ("big", "bigger", "grand", "", "before", "PATOCVSLKHNXE"),
    ("small", "smaller", "petit", "", "before", "PAFTOCVSLKHNIBWXE"),
    ("good", "-", "bon", "bonne", "before", "PFMDWUXETI"), ("bad", "-", "mauvais", "", "before", "FMDWUXEI"),
    ("beautiful", "", "beau", "belle", "before", "PATCVHNLKBUI", "bel"),
    ("old", "older", "vieux", "vieille", "before", "PATOCVSHNBWI", "vieil"),
    ("new", "-", "nouveau", "nouvelle", "before", "TOCVSHWBUXEI", "nouvel"),
    ("young", "younger", "jeune", "", "before", "PA"), ("long", "longer", "long", "longue", "before", "WUCXE"),
    ("fat", "fatter", "gros", "grosse", "before", "AF"), ("high", "higher", "*haut", "", "before", "HO"),
    ("real", "-", "vrai", "", "before", "XBW"), ("false", "-", "faux", "fausse", "before", "XTBW"),
    ("red", "-", "rouge", "", "after", "FTOCVSN"), ("blue", "-", "bleu", "", "after", "TOCVSN"),
    ("green", "-", "vert", "", "after", "FTOCVS"), ("yellow", "-", "jaune", "", "after", "FTOCVSN"),
    ("white", "-", "blanc", "blanche", "after", "ATOCVSNHFDM"), ("black", "-", "noir", "", "after", "ATOCVSIDF"),
    ("grey", "-", "gris", "", "after", "ATOCVSN"), ("heavy", "heavier", "lourd", "", "after", "TOSC"),
    ("light", "lighter", "léger", "", "after", "TOSC"), ("expensive", "", "cher", "", "after", "FMDTCVSHIB"),
    ("strong", "stronger", "fort", "", "after", "PAD"), ("rich", "richer", "riche", "", "after", "P"),
    ("poor", "poorer", "pauvre", "", "after", "P"), ("happy", "happier", "heureux", "", "after", "PA"),
    ("sad", "sadder", "triste", "", "after", "PAWUB"), ("tired", "", "fatigué", "", "after", "PA"),
    ("sick", "sicker", "malade", "", "after", "PA"), ("intelligent", "", "intelligent", "", "after", "PA"),
    ("kind", "kinder", "gentil", "gentille", "after", "PA"), ("wicked", "", "méchant", "", "after", "PA"),
    ("brave", "braver", "courageux", "", "after", "PA"), ("lazy", "lazier", "paresseux", "", "after", "PA"),
    ("polite", "", "poli", "", "after", "P"), ("proud", "prouder", "fier", "", "after", "PA"),
    ("jealous", "", "jaloux", "", "after", "P"), ("famous", "", "célèbre", "", "after", "PWUBHLKN"),
    ("honest", "", "honnête", "", "after", "P"), ("loyal", "", "loyal", "", "after", "PA"),
    ("curious", "", "curieux", "", "after", "PA"), ("nervous", "", "nerveux", "", "after", "PA"),
    ("strange", "stranger", "étrange", "", "after", "PATWUBXENHLK"),
    ("dangerous", "", "dangereux", "", "after", "PATVLKNXE"), ("useful", "", "utile", "", "after", "TVWXEBO"),
    ("easy", "easier", "facile", "", "after", "WXEU"), ("difficult", "", "difficile", "", "after", "WXEUP"),
    ("simple", "simpler", "simple", "", "after", "PWXEUTM"), ("important", "", "important", "", "after", "PWXEHB"),
    ("interesting", "", "intéressant", "", "after", "PWUBXEHLK"), ("boring", "", "ennuyeux", "", "after", "PWUXELK"),
    ("funny", "funnier", "drôle", "", "after", "PAWUBXE"), ("serious", "", "sérieux", "", "after", "PWXE"),
    ("French", "-", "français", "", "after", "PFMDWBUCVHI"), ("English", "-", "anglais", "", "after", "PWBUCVSHDE"),
    ("Italian", "-", "italien", "", "after", "PFMDWBUCVSI"), ("Dutch", "-", "*hollandais", "", "after", "PMDBVCWHN"),
    ("hot", "hotter", "chaud", "", "after", "MDF"), ("cold", "colder", "froid", "", "after", "MDLKHF"),
    ("fresh", "fresher", "frais", "fraîche", "after", "FMD"), ("clean", "cleaner", "propre", "", "after", "TOCVSLKH"),
    ("dirty", "dirtier", "sale", "", "after", "ATOCVSLKH"), ("empty", "emptier", "vide", "", "after", "OLKHSTV"),
    ("round", "rounder", "rond", "", "after", "TSONF"), ("modern", "", "moderne", "", "after", "TVHSBWU"),
    ("delicious", "", "délicieux", "", "after", "FMD"), ("wild", "wilder", "sauvage", "", "after", "A"),
    ("quiet", "quieter", "tranquille", "", "after", "PALKH"), ("noisy", "noisier", "bruyant", "", "after", "PAVLKHI"),
    ("fast", "faster", "rapide", "", "after", "VA"), ("slow", "slower", "lent", "", "after", "VA"),
    ("comfortable", "", "confortable", "", "after", "SCVH"), ("elegant", "", "élégant", "", "after", "PCVSH"),
)

# English, number (s singular, p plural, m mass), masculine, feminine; both before a vowel where they differ.
DETERMINERS: tuple[tuple[str, ...], ...] = (
    ("the", "s", "le", "la"), ("the", "p", "les", "les"), ("a", "s", "un", "une"), ("some", "p", "des", "des"),
    ("some", "m", "de le", "de la"), ("this", "s", "ce", "cette", "cet", "cette"), ("these", "p", "ces", "ces"),
    ("my", "s", "mon", "ma", "mon", "mon"), ("my", "p", "mes", "mes"), ("your", "s", "votre", "votre"),
    ("your", "p", "vos", "vos"), ("his", "s", "son", "sa", "son", "son"), ("his", "p", "ses", "ses"),
    ("her", "s", "son", "sa", "son", "son"), ("her", "p", "ses", "ses"), ("our", "s", "notre", "notre"),
    ("our", "p", "nos", "nos"), ("their", "s", "leur", "leur"), ("their", "p", "leurs", "leurs"),
    ("every", "s", "chaque", "chaque"), ("several", "p", "plusieurs", "plusieurs"),
    ("many", "p", "beaucoup de", "beaucoup de"), ("a few", "p", "quelques", "quelques"),
    ("all the", "p", "tous les", "toutes les"),
)

# English, English object, French, French object, person, gender. `you` is always vous;
# I, you, we and they are masculine.
PRONOUNS: tuple[tuple[str, str, str, str, int, str], ...] = (
    ("I", "me", "je", "me", 0, "m"),
    ("he", "him", "il", "le", 2, "m"),
    ("she", "her", "elle", "la", 2, "f"),
    ("we", "us", "nous", "nous", 3, "m"),
    ("you", "you", "vous", "vous", 4, "m"),
    ("they", "them", "ils", "les", 5, "m"),
)

# Names, and their gender.
NAMES: tuple[tuple[str, str], ...] = (
    ("Paul", "m"), ("Pierre", "m"), ("Lucas", "m"), ("Antoine", "m"), ("Hugo", "m"), ("Olivier", "m"), ("Marc", "m"),
    ("Julien", "m"), ("Thomas", "m"), ("Émile", "m"), ("Marie", "f"), ("Sophie", "f"), ("Alice", "f"), ("Hélène", "f"),
    ("Julie", "f"), ("Emma", "f"), ("Camille", "f"), ("Louise", "f"), ("Inès", "f"), ("Claire", "f"),
)

# What stands in the middle of the verb: English, French, and whether French has `ne` with it.
MIDDLES: tuple[tuple[str, str, bool], ...] = (
    ("not", "pas", True), ("never", "jamais", True), ("no longer", "plus", True),
    ("often", "souvent", False), ("always", "toujours", False), ("sometimes", "parfois", False),
    ("rarely", "rarement", False),
)

# How, after the verb and its object.
MANNERS: tuple[tuple[str, str], ...] = (
    ("slowly", "lentement"), ("quickly", "rapidement"), ("calmly", "calmement"), ("carefully", "prudemment"),
    ("gently", "doucement"), ("patiently", "patiemment"), ("noisily", "bruyamment"), ("easily", "facilement"),
    ("secretly", "secrètement"), ("here", "ici"), ("everywhere", "partout"),
)

PREPOSITIONS: tuple[tuple[str, str, str], ...] = (
    ("in", "dans", "LKH"), ("on", "sur", "S"), ("under", "sous", "S"), ("behind", "derrière", "HV"),
    ("in front of", "devant", "HV"), ("near", "près de", "LKHV"),
)

CITIES: tuple[tuple[str, str], ...] = (
    ("Paris", "Paris"), ("London", "Londres"), ("Brussels", "Bruxelles"), ("Geneva", "Genève"), ("Lisbon", "Lisbonne"),
    ("Athens", "Athènes"), ("Venice", "Venise"), ("Moscow", "Moscou"), ("Warsaw", "Varsovie"), ("Vienna", "Vienne"),
)

WEEKDAYS: tuple[tuple[str, str], ...] = (
    ("Monday", "lundi"), ("Tuesday", "mardi"), ("Wednesday", "mercredi"), ("Thursday", "jeudi"), ("Friday", "vendredi"),
    ("Saturday", "samedi"), ("Sunday", "dimanche"),
)

# English, French, days.
MONTHS: tuple[tuple[str, str, int], ...] = (
    ("January", "janvier", 31), ("February", "février", 28), ("March", "mars", 31), ("April", "avril", 30),
    ("May", "mai", 31), ("June", "juin", 30), ("July", "juillet", 31), ("August", "août", 31),
    ("September", "septembre", 30), ("October", "octobre", 31), ("November", "novembre", 30),
    ("December", "décembre", 31),
)

PRESENT_TIMES: tuple[tuple[str, str], ...] = (
    ("now", "maintenant"), ("every/1 day/2", "chaque/1 jour/2"), ("every/1 morning/2", "chaque/1 matin/2"),
    ("every/1 evening/2", "chaque/1 soir/2"), ("every/1 week/2", "chaque/1 semaine/2"), ("in/1 summer/2", "en/1 été/2"),
    ("in/1 winter/2", "en/1 hiver/2"), ("in/1 spring/2", "au/1 printemps/2"), ("at/1 noon/2", "à/1 midi/2"),
    ("in/1 the/1 morning/2", "le/1 matin/2"), ("in/1 the/1 evening/2", "le/1 soir/2"),
)
PAST_TIMES: tuple[tuple[str, str], ...] = (
    ("yesterday", "hier"), ("yesterday/1 evening/2", "hier/1 soir/2"), ("last/1 week/2", "la/2 semaine/2 dernière/1"),
    ("last/1 month/2", "le/2 mois/2 dernier/1"), ("last/1 year/2", "la/2 année/2 dernière/1"),
)
FUTURE_TIMES: tuple[tuple[str, str], ...] = (
    ("tomorrow", "demain"), ("tomorrow/1 morning/2", "demain/1 matin/2"), ("this/1 evening/2", "ce/1 soir/2"),
    ("next/1 week/2", "la/2 semaine/2 prochaine/1"), ("next/1 month/2", "le/2 mois/2 prochain/1"),
    ("next/1 year/2", "la/2 année/2 prochaine/1"),
)
# Years in which something happened, and in which something will: the first, and the first after the last.
PAST_YEARS = (1970, 2010)
FUTURE_YEARS = (2040, 2060)

# Spans of time: English, French, gender.
UNITS: tuple[tuple[str, str, str], ...] = (
    ("day", "jour", "m"), ("week", "semaine", "f"), ("month", "mois", "m"), ("year", "an", "m"), ("hour", "heure", "f"),
)

JOINERS: tuple[tuple[str, str], ...] = (
    ("and", "et"), ("or", "ou"), (",/1 but/2", ",/1 mais/2"), ("because", "parce que"),
)

QUESTIONS: tuple[tuple[str, str], ...] = (("why", "pourquoi"), ("when", "quand"), ("where", "où"))
DEGREES: tuple[tuple[str, str], ...] = (("very", "très"), ("too", "trop"))
COMPARISONS: tuple[tuple[str, str], ...] = (("more", "plus"), ("less", "moins"), ("as", "aussi"))

# English, third person, negative where it is one word, what comes before the infinitive, French.
MODALS: tuple[tuple[str, str, str, str, str], ...] = (
    ("can", "can", "cannot", "", "pouvoir"), ("must", "must", "", "", "devoir"), ("want", "wants", "", "to", "vouloir"),
)

# Function words that the realization adds, for the list of lemmas.
WOVEN: tuple[tuple[str, str], ...] = (
    ("be", "être"), ("do", "est-ce que"), ("will", "-ra"), ("who", "qui"), ("that", "que"), ("by", "par"), ("to", "à"),
    ("with", "avec"), ("there", "il y a"), ("than", "que"), ("ago", "il y a"), ("'s", "de"),
)
