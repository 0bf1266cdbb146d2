exec(open('/tmp/att1d/lib.py').read())
import cProfile,pstats
p=build({**STARTS["fa3"],"depth":64,"tile_n":64,"consumers":1,"turns":"none","weights":"shared"})
pr=cProfile.Profile(); pr.enable(); computes(p,{"l":1,"h":1,"g":2,"m":150,"n":170,"d":64,"e":56}); pr.disable()
pstats.Stats(pr).sort_stats('cumulative').print_stats(45)
